"""Which files a figure depends on, and their hash: what has not changed need not be made again."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from experiments.cells import package_version

ROOT = Path(__file__).resolve().parents[2]

FLOORS = ("traces", "costmodels", "policies", "sim")
"""Taken whole: what is below the experiments finds its parts by itself, so that imports do not tell."""

OF_RUNS = tuple(f"experiments.{name}" for name in ("run", "cells", "source", "config", "draft", "toml"))
"""What a run with a given configuration depends on besides."""

IGNORED = (".pyc",)


def hash_of_files(files: Iterable[Path]) -> str:
    """Return 16 hex digits of the SHA-256 of the package's version and of files, with their names."""
    digest = hashlib.sha256(package_version().encode())
    for path in sorted(set(files)):
        at = path.stat()
        digest.update(f"\0{path.name}\0{_hash_of(path, at.st_mtime_ns, at.st_size)}".encode())
    return digest.hexdigest()[:16]


@cache
def _hash_of(path: Path, changed_ns: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def floor_files() -> tuple[Path, ...]:
    """Return every file of the folders below the experiments."""
    found = (path for floor in FLOORS for path in (ROOT / floor).rglob("*"))
    return tuple(path for path in found if path.is_file() and path.suffix not in IGNORED)


@cache
def module_files(name: str) -> tuple[Path, ...]:
    """Return the files of a module of the experiments and of all that it imports, and the data beside them."""
    found: set[Path] = set()
    todo = [name]
    while todo:
        path = _file(todo.pop())
        if path is None or path in found:
            continue
        found.add(path)
        todo += _imported(path)
    beside = (path for folder in {path.parent for path in found} for path in folder.iterdir())
    return tuple(sorted(found | {p for p in beside if p.is_file() and p.suffix not in (".py", *IGNORED)}))


def runs_hash() -> str:
    """Return the hash of what kept runs depend on, besides their configuration."""
    return hash_of_files([*floor_files(), *(path for name in OF_RUNS if (path := _file(name)) is not None)])


def _file(module: str) -> Path | None:
    if not module.startswith("experiments."):
        return None
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _imported(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)
