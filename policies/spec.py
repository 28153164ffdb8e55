"""Policies as text and as JSON: ``ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]]``, or an alias."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic import ValidationError

from policies.base import Admission, Chunking, Ordering, Part, Policy, PolicyError
from policies.registry import ALIASES, KINDS, find, nearest, parts


@dataclass(frozen=True)
class PartSpec:
    """A part by name, version and its full parameters, JSON types only."""

    name: str
    params: dict[str, Any]
    version: int = 1


@dataclass(frozen=True)
class PolicySpec:
    """What is stored with every result: enough to build the policy again, and to notice that it changed."""

    ordering: PartSpec
    chunking: PartSpec
    admission: PartSpec | None = None
    label: str = ""

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """Read a policy string.

        Raises:
            PolicyError: naming what is unknown or out of range, and the nearest that exists.
        """
        pieces = [_split(piece, text) for piece in text.split("+")]
        if pieces[0][0] in ALIASES:
            pieces[:1] = _expand(*pieces[0])
        if not 2 <= len(pieces) <= len(KINDS):
            name = pieces[0][0]
            hint = "" if name in parts("ordering") else nearest(name, [*ALIASES, *parts("ordering")])
            raise PolicyError(
                f"policy {text!r} should read ordering+chunking[+admission], like fcfs+fixed:chunk=256, "
                f"or an alias ({', '.join(ALIASES)}){hint}"
            )
        made = [_part_spec(kind, name, params) for kind, (name, params) in zip(KINDS, pieces, strict=False)]
        return cls(made[0], made[1], made[2] if len(made) > 2 else None, text)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PolicySpec:
        """Read what :meth:`to_dict` wrote.

        Raises:
            PolicyError: if a part is unknown, or has another version now.
        """
        made: dict[str, PartSpec | None] = {}
        for kind in KINDS:
            stored = data.get(kind)
            if stored is None:
                made[kind] = None
                continue
            spec = _part_spec(kind, stored["name"], stored["params"])
            if spec.version != stored["version"]:
                raise PolicyError(
                    f"{kind} {spec.name} is at version {spec.version} now; the result was made with version "
                    f"{stored['version']}, which decides differently"
                )
            made[kind] = spec
        if made["ordering"] is None or made["chunking"] is None:
            raise PolicyError("a policy needs an ordering and a chunking")
        return cls(made["ordering"], made["chunking"], made["admission"], str(data.get("label", "")))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        out: dict[str, Any] = {"label": self.label}
        for kind in KINDS:
            part: PartSpec | None = getattr(self, kind)
            out[kind] = part and {"name": part.name, "version": part.version, "params": part.params}
        return out

    def __str__(self) -> str:
        """Return the policy string, with the parameters that differ from the defaults."""
        return "+".join(_format(kind, part) for kind in KINDS if (part := getattr(self, kind)) is not None)

    def build(self) -> Policy:
        """Make the policy objects."""
        ordering, chunking, admission = (
            None if part is None else find(kind, part.name)(**part.params)
            for kind, part in zip(KINDS, (self.ordering, self.chunking, self.admission), strict=True)
        )
        return Policy(
            cast(Ordering, ordering),
            cast(Chunking, chunking),
            cast(Admission | None, admission),
            self.label or str(self),
        )


def _split(piece: str, text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = piece.strip().partition(":")
    params = {}
    for pair in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise PolicyError(f"policy {text!r}: {pair!r} should read name=value")
        if key in params:
            raise PolicyError(f"policy {text!r}: {key} is given twice")
        params[key] = value
    if not name:
        raise PolicyError(f"policy {text!r} has an empty part; it should read ordering+chunking[+admission]")
    return name, params


def _expand(alias: str, params: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    pieces = [_split(piece, alias) for piece in ALIASES[alias].split("+")]
    for key, value in params.items():
        takers = [p for kind, p in zip(KINDS, pieces, strict=False) if key in _names(find(kind, p[0]))]
        if not takers:
            known = [n for kind, p in zip(KINDS, pieces, strict=False) for n in _names(find(kind, p[0]))]
            raise PolicyError(_no_param(f"alias {alias}", key, known))
        takers[0][1][key] = value
    return pieces


def _names(part: type[Part]) -> list[str]:
    return [f.name for f in fields(part)]  # type: ignore[arg-type]


def _no_param(what: str, key: str, known: list[str]) -> str:
    return f"{what} has no parameter {key}{nearest(key, known)} (parameters: {', '.join(known) or 'none'})"


def _part_spec(kind: str, name: str, params: dict[str, Any]) -> PartSpec:
    part = find(kind, name)
    for key in params:
        if key not in _names(part):
            raise PolicyError(_no_param(f"{kind} {name}", key, _names(part)))
    try:
        made = part(**params)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PolicyError(f"{kind} {name}: {where}={params.get(where)!r}: {first['msg'].lower()}") from None
    except PolicyError:
        raise
    except ValueError as e:
        raise PolicyError(f"{kind} {name}: {e}") from None
    return PartSpec(name, made.params(), part.version)


def _format(kind: str, spec: PartSpec) -> str:
    defaults = find(kind, spec.name)().params()
    shown = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in spec.params.items() if v != defaults[k]]
    return spec.name + (":" + ",".join(shown) if shown else "")


def parse_policy(text: str) -> Policy:
    """Build the policy that ``text`` describes; see :meth:`PolicySpec.parse`."""
    return PolicySpec.parse(text).build()
