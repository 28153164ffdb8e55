"""Policies as text and as JSON: ``ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]]``, or an alias."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic import ValidationError

from policies.base import Admission, Chunking, Ordering, Part, Policy, PolicyError
from policies.registry import ALIASES, KINDS, find, nearest, parts

FORM = "ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]]"

SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class PartSpec:
    """A part by name, version and its full parameters: numbers, strings and ``None``."""

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
    """The policy as the user wrote it."""

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """Read a policy string.

        Raises:
            PolicyError: naming what is unknown or out of range, and the nearest that exists.
        """
        if len(text) > LONGEST:
            raise PolicyError(f"a policy string has at most {LONGEST:,} characters, not {len(text):,}")
        # No part's name begins with a digit, so the plus of 1e+3 does not end a part.
        pieces = [_split(piece, text) for piece in re.split(r"\+(?!\d)", text)]
        if pieces[0][0] in ALIASES:
            pieces[:1] = _expand(*pieces[0])
        if not 2 <= len(pieces) <= len(KINDS):
            name = pieces[0][0]
            hint = "" if name in parts("ordering") else nearest(name, [*ALIASES, *parts("ordering")])
            raise PolicyError(
                f"policy {text!r} should read {FORM}, like fcfs+fixed:chunk=256, "
                f"or an alias ({', '.join(ALIASES)}){hint}"
            )
        made = [_part_spec(kind, name, params) for kind, (name, params) in zip(KINDS, pieces, strict=False)]
        return cls(made[0], made[1], made[2] if len(made) > 2 else None, text)

    @classmethod
    def from_dict(cls, data: Any) -> PolicySpec:
        """Read what :meth:`to_dict` wrote.

        Raises:
            PolicyError: if a part is malformed or unknown, or has another version now.
        """
        if not isinstance(data, dict):
            raise PolicyError(f"a stored policy is a JSON object, not {type(data).__name__}")
        made = {kind: _stored(kind, data[kind]) for kind in KINDS if data.get(kind) is not None}
        for kind in ("ordering", "chunking"):
            if kind not in made:
                raise PolicyError(f"a stored policy needs its {kind}")
        return cls(made["ordering"], made["chunking"], made.get("admission"), str(data.get("label", "")))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; infinity is the string ``inf``, for which JSON has no number."""
        out: dict[str, Any] = {"label": self.label}
        for kind in KINDS:
            part: PartSpec | None = getattr(self, kind)
            if part is None:
                out[kind] = None
                continue
            params = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in part.params.items()}
            out[kind] = {"name": part.name, "version": part.version, "params": params}
        return out

    def __str__(self) -> str:
        """Return the policy string, with the parameters that differ from the defaults."""
        return "+".join(
            _format(part, find(kind, part.name)().params())
            for kind in KINDS
            if (part := getattr(self, kind)) is not None
        )

    def build(self) -> Policy:
        """Make the policy objects."""
        ordering, chunking, admission = (
            None if part is None else make_part(kind, part.name, part.params)
            for kind, part in zip(KINDS, (self.ordering, self.chunking, self.admission), strict=True)
        )
        return Policy(
            cast(Ordering, ordering),
            cast(Chunking, chunking),
            cast(Admission | None, admission),
            self.label or str(self),
        )


LONGEST = 5_000
"""Characters of a policy string; messages repeat it."""


def parse_policy(text: str) -> Policy:
    """Build the policy that ``text`` describes; see :meth:`PolicySpec.parse`."""
    return PolicySpec.parse(text).build()


def _split(piece: str, text: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = piece.strip().partition(":")
    name = name.strip()
    params = {}
    if not name.isprintable():
        raise PolicyError(f"policy {text!r}: {name!r} is no name of a part")
    for pair in filter(None, (p.strip() for p in rest.split(","))):
        key, _, value = (t.strip() for t in pair.partition("="))
        if not key or not value:
            raise PolicyError(f"policy {text!r}: {pair!r} should read name=value")
        if not key.isprintable():
            raise PolicyError(f"policy {text!r}: {key!r} is no name of a parameter")
        if key in params:
            raise PolicyError(f"policy {text!r}: {key} is given twice")
        params[key] = value
    if not name:
        raise PolicyError(f"policy {text!r} has an empty part; it should read {FORM}")
    return name, params


def _expand(alias: str, params: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    pieces = [_split(piece, alias) for piece in ALIASES[alias].split("+")]
    for key, value in params.items():
        takers = [p for kind, p in zip(KINDS, pieces, strict=False) if key in _names(find(kind, p[0]))]
        if not takers:
            known = [n for kind, p in zip(KINDS, pieces, strict=False) for n in _names(find(kind, p[0]))]
            raise PolicyError(_no_param(f"alias {alias}", key, known))
        takers[0][1][key] = value
    return pieces


def _names(part: type[Part]) -> list[str]:
    return [f.name for f in fields(part) if f.init]  # type: ignore[arg-type]


def _no_param(what: str, key: str, known: list[str]) -> str:
    return f"{what} has no parameter {key}{nearest(key, known)} (parameters: {', '.join(known) or 'none'})"


def _stored(kind: str, data: Any) -> PartSpec:
    if not (isinstance(data, dict) and isinstance(data.get("name"), str) and isinstance(data.get("params"), dict)):
        raise PolicyError(f'a stored {kind} should read {{"name": ..., "version": ..., "params": {{...}}}}')
    spec = _part_spec(kind, data["name"], data["params"])
    if spec.version != data.get("version"):
        raise PolicyError(
            f"{kind} {spec.name} is at version {spec.version} now; the result was made with version "
            f"{data.get('version')}, which decides differently"
        )
    return spec


def make_part(kind: str, name: str, params: dict[str, Any]) -> Part:
    """Make a registered part.

    Raises:
        PolicyError: naming the part and the parameter that is unknown or out of range.
    """
    part = find(kind, name)
    known = _names(part)
    for key in params:
        if key not in known:
            raise PolicyError(_no_param(f"{kind} {name}", key, known))
    try:
        return part(**params)
    except ValidationError as e:
        first = e.errors()[0]
        own = first.get("ctx", {}).get("error")
        message = str(own) if own else first["msg"][0].lower() + first["msg"][1:]
        key = f"{first['loc'][0]}={params.get(str(first['loc'][0]))}: " if first["loc"] else ""
        raise PolicyError(f"{kind} {name}: {key}{message}") from None
    except ValueError as e:
        raise PolicyError(f"{kind} {name}: {e}") from None
    except Exception as e:
        raise PolicyError(f"{kind} {name} cannot be made: {type(e).__name__}: {e}") from e


def _part_spec(kind: str, name: str, params: dict[str, Any]) -> PartSpec:
    made = make_part(kind, name, params)
    spec = PartSpec(name, made.params(), made.version)
    defaults = find(kind, name)().params()
    for key, value in spec.params.items():
        if type(value) not in SCALARS:
            raise PolicyError(
                f"{kind} {name}: {key} is a {type(value).__name__}; a parameter is a number, a string, a bool or None"
            )
        # What a result stores must read back from its policy string as well.
        if value != defaults[key]:
            text = _text(value)
            try:
                again = make_part(kind, name, {**spec.params, **_split(f"{name}:{key}={text}", name)[1]}).params()
            except PolicyError:
                again = {}
            if "+" in text or again != spec.params:
                raise PolicyError(f"{kind} {name}: {key}={value!r} cannot be written in a policy string")
    return spec


def _format(spec: PartSpec, defaults: dict[str, Any]) -> str:
    shown = [f"{k}={_text(v)}" for k, v in spec.params.items() if v != defaults[k]]
    return spec.name + (":" + ",".join(shown) if shown else "")


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return (short if float(short) == value else repr(value)).replace("e+", "e")
