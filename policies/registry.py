"""The one way to add a policy: ``@register`` on a part; and the parts and aliases that exist."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from policies.base import Part, PolicyError

PartType = TypeVar("PartType", bound=type[Part])

KINDS = ("ordering", "chunking", "admission")

_parts: dict[str, dict[str, type[Part]]] = {kind: {} for kind in KINDS}

ALIASES: dict[str, str] = {
    "sloweave": "fcfs+deadline-fill",
    "vllm-default": "fcfs+token-budget:budget=2048",
    "sarathi": "fcfs+token-budget:budget=512",
    "prefillonly": "srjf-calibrated:lam=500+full",
}
"""Names of whole policies. Parameters after an alias go to the part that has them."""


@dataclass_transform(frozen_default=False)
def register(part: PartType) -> PartType:
    """Make a class of parameters a policy part that strings and files can name.

    Annotated attributes become validated parameters.

    Raises:
        PolicyError: if it has no name, or another class has taken the name.
    """
    name = part.__dict__.get("name")
    if not isinstance(name, str) or not name or set(name) & set("+:,= "):
        raise PolicyError(f"{part.__name__} needs a name like 'my-ordering': no spaces and none of + : , =")
    made = pydantic_dataclass(part, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
    known = _parts[part.kind].get(name)
    if known is not None and _origin(known) != _origin(part):
        raise PolicyError(f"the {part.kind} {name} of {_origin(part)[0]} exists already in {_origin(known)[0]}")
    if name in ALIASES:
        raise PolicyError(f"the name {name} is taken by the alias {name} = {ALIASES[name]}")
    _parts[part.kind][name] = made  # type: ignore[assignment]
    return made  # type: ignore[return-value]


def _origin(part: type[Part]) -> tuple[str, str]:
    return (getattr(sys.modules.get(part.__module__), "__file__", None) or part.__module__, part.__qualname__)


def _load_builtin() -> None:
    import policies.chunking
    import policies.ordering

    for package in (policies.ordering, policies.chunking):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    importlib.import_module("policies.admission")


def parts(kind: str) -> dict[str, type[Part]]:
    """Return the registered parts of a kind by name."""
    _load_builtin()
    return dict(sorted(_parts[kind].items()))


def find(kind: str, name: str) -> type[Part]:
    """Return a part's class.

    Raises:
        PolicyError: if there is none; the message has the nearest name.
    """
    known = parts(kind)
    if name in known:
        return known[name]
    elsewhere = [k for k in KINDS if name in parts(k)]
    if elsewhere:
        raise PolicyError(f"{name} is a policy's {elsewhere[0]}, not an {kind}; write ordering+chunking[+admission]")
    raise PolicyError(f"unknown {kind} {name}{nearest(name, [*known, *ALIASES])} ({kind}s: {', '.join(known)})")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the most similar of ``names``, or nothing where none is similar."""
    near = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""


def load_plugin(path: str | Path) -> list[type[Part]]:
    """Run a user's Python file, whose ``@register`` lines add its parts, and return those.

    Loading the same file again replaces its parts.

    Raises:
        PolicyError: if the file cannot be read or run, or registers nothing.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise PolicyError(f"plug-in {path} is not a file")
    _load_builtin()
    before: dict[int, Any] = {id(p): p for kind in KINDS for p in _parts[kind].values()}
    name = f"prefillsim_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PolicyError(f"plug-in {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except PolicyError:
        raise
    except Exception as e:
        raise PolicyError(f"plug-in {path} does not run: {type(e).__name__}: {e}") from e
    added = [p for kind in KINDS for p in _parts[kind].values() if id(p) not in before]
    if not added:
        raise PolicyError(f"plug-in {path} registers no policy part; put @register on a class")
    return added
