"""The one way to add a policy: ``@register`` on a part; and the parts and aliases that exist."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TypeVar, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from costmodels.files import read_bounded
from policies.base import Admission, Chunking, Ordering, Part, PolicyError

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

    Annotated attributes become validated parameters; each needs a default.

    Raises:
        PolicyError: if it is not a part, has no name, its parameters cannot be used, or another class has taken the
            name.
    """
    problem = class_problem(part)
    if problem is not None:
        raise PolicyError(problem)
    made = _with_parameters(part)
    known = _parts[part.kind].get(part.name)
    if known is not None and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
        raise PolicyError(f"{part.__name__}: the {part.kind} {part.name} exists already, in {_home(known)}")
    _parts[part.kind][part.name] = made
    return made


def class_problem(part: object) -> str | None:
    """Say why ``part`` cannot be registered as it stands, or return ``None``."""
    called = getattr(part, "__name__", repr(part))
    bases = [b for b in (Ordering, Chunking, Admission) if isinstance(part, type) and issubclass(part, b)]
    if not isinstance(part, type) or len(bases) != 1:
        has = " and ".join(b.__name__ for b in bases) or "none of them"
        return f"{called} must be a subclass of exactly one of Ordering, Chunking and Admission; it is one of {has}"
    name = part.__dict__.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        return f"{called} needs a name like name = 'my-{bases[0].kind}': a letter, then letters, digits, - _ or ."
    if name in ALIASES:
        return f"{called}: the name {name} is taken by the alias {name} = {ALIASES[name]}"
    kind = bases[0].kind
    if part.__dict__.get("kind", kind) != kind:
        return f"{called}: kind is {part.__dict__['kind']!r}; leave it to {bases[0].__name__}"
    return None


def _with_parameters(part: PartType) -> PartType:
    try:
        made = pydantic_dataclass(part, config=ConfigDict(extra="forbid", defer_build=False))
    except Exception as e:
        raise PolicyError(f"{part.__name__}: its parameters cannot be used: {str(e).splitlines()[0]}") from e
    if not getattr(made, "__pydantic_complete__", True):
        raise PolicyError(f"{part.__name__}: a parameter has a type that is not defined")
    for f in fields(made):
        if any(hasattr(base, f.name) for base in (Ordering, Chunking, Admission)):
            raise PolicyError(
                f"{part.__name__}: {f.name} cannot be a parameter, for it has a meaning of its own; write it without "
                "a type, or choose another name"
            )
        if f.init and f.default is MISSING and f.default_factory is MISSING:
            raise PolicyError(f"{part.__name__}: parameter {f.name} needs a default, so that {part.name} alone works")
    return made  # type: ignore[return-value]


def _home(part: type[Part]) -> str:
    return getattr(sys.modules.get(part.__module__), "__file__", None) or part.__module__


@functools.cache
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
    _load_builtin()
    if name in _parts[kind]:
        return _parts[kind][name]
    known = parts(kind)
    elsewhere = [k for k in KINDS if name in parts(k)]
    if elsewhere:
        raise PolicyError(f"{name} is {_a(elsewhere[0])}, not {_a(kind)}; write ordering+chunking[+admission]")
    raise PolicyError(f"unknown {kind} {name}{nearest(name, [*known, *ALIASES])} ({kind}s: {', '.join(known)})")


def _a(kind: str) -> str:
    return f"a{'n' * (kind[0] in 'ao')} {kind}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the most similar of ``names``, or nothing where none is similar."""
    near = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""


def load_plugin(path: str | Path) -> list[type[Part]]:
    """Run a user's Python file, whose ``@register`` lines add its parts, and return those.

    Loading the same file again replaces its parts. A file that fails adds nothing.

    Raises:
        PolicyError: if the file cannot be read or run, or registers nothing; it names the file and line.
    """
    file = Path(os.path.realpath(path))  # a link to itself is a file that cannot be read
    try:
        source = read_bounded(file)
    except OSError as e:
        raise PolicyError(f"plug-in {path} cannot be read: {e.strerror}") from None
    _load_builtin()
    # Two files may have the same stem, and a module's name must tell their classes apart.
    name = f"prefillsim_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    before = {kind: dict(_parts[kind]) for kind in KINDS}
    module_before = sys.modules.get(name)
    for known in _parts.values():
        for old in [n for n, p in known.items() if p.__module__ == name]:
            del known[old]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    added: list[type[Part]] = []
    try:
        _run(source, file, path, module)
        added = [p for kind in KINDS for p in _parts[kind].values() if p.__module__ == name]
        if not added:
            raise PolicyError(f"plug-in {path} registers no policy part; put @register on a class")
    finally:
        if not added:
            for kind in KINDS:
                _parts[kind] = before[kind]
            del sys.modules[name]
            if module_before is not None:
                sys.modules[name] = module_before
    return added


def _run(source: bytes, file: Path, path: str | Path, module: ModuleType) -> None:
    """Execute a plug-in without leaving compiled files beside it."""
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except SyntaxError as e:
        line = f", line {e.lineno}" if e.lineno else ""
        raise PolicyError(f"plug-in {path}{line} is not valid Python: {e.msg}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        line = _line_in(file, e.__traceback__)
        what = str(e) if isinstance(e, PolicyError) else f"does not run: {type(e).__name__}: {e}"
        raise PolicyError(f"plug-in {path}{line}: {what}") from e


def _line_in(file: Path, trace: TracebackType | None) -> str:
    line = ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
