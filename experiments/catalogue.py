"""Policy parts described from their own code: parameters, defaults, what they mean, and where they are from."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from typing import Any

from policies.base import Part
from policies.registry import KINDS, parts


def describe_part(part: type[Part]) -> dict[str, Any]:
    """Return a part's name, kind, version, source, first line of documentation, and parameters."""
    docs = _parameter_docs(part)
    return {
        "name": part.name,
        "kind": part.kind,
        "version": part.version,
        "source": part.source,
        "summary": (inspect.getdoc(part) or "").partition("\n")[0],
        "parameters": [
            {"name": f.name, "default": _default(f), "doc": docs.get(f.name, "")}
            for f in dataclasses.fields(part)  # type: ignore[arg-type]
            if f.init
        ],
    }


def catalogue() -> list[dict[str, Any]]:
    """Return every registered part, by kind and name."""
    return [describe_part(part) for kind in KINDS for part in parts(kind).values()]


def signature(described: dict[str, Any]) -> str:
    """Return ``name:parameter=default,...``, as a policy string has it."""
    parameters = [f"{p['name']}={'-' if p['default'] is None else p['default']}" for p in described["parameters"]]
    return str(described["name"]) + (":" + ",".join(parameters) if parameters else "")


def _default(field: Any) -> Any:
    """Return a field's default; ``None`` also for one that must be given."""
    value = field.default
    # pydantic may keep the default in its own description of the field.
    value = getattr(value, "default", value)
    return None if value is dataclasses.MISSING or type(value).__name__ == "PydanticUndefinedType" else value


def _parameter_docs(part: type[Part]) -> dict[str, str]:
    """Return the strings that follow the fields in the class body and its bases', by field; none without source."""
    docs: dict[str, str] = {}
    for base in reversed(part.__mro__):
        docs |= _own_docs(base)
    return docs


@functools.cache
def _own_docs(part: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, after in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            docs[field.target.id] = " ".join(after.value.value.split())
    return docs
