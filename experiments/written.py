"""Single files that commands write where the user says."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from experiments.config import ConfigError
from sim.store import atomic_write


def check_file(path: Path, *suffixes: str) -> None:
    """Refuse a place where no such file can be written, before any work is done.

    Raises:
        ConfigError: if it is a folder, has no folder, or another suffix than these.
    """
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; give a file, like {path / f'report{suffixes[0]}'}")
    if not path.name.endswith(suffixes):
        raise ConfigError(f"--out {path} should end with {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}")


def write_text(path: Path, text: str | Iterable[str]) -> int:
    """Write a file, compressed where its name ends with ``.gz``; return its size in bytes.

    Args:
        path: where.
        text: all of it, or piece by piece, of which no two need to be in memory.

    Raises:
        OSError: if it cannot be written; what was there is kept then.
    """
    pieces = (text,) if isinstance(text, str) else text

    def fill(file: BinaryIO) -> None:
        packed = path.name.endswith(".gz")
        with gzip.GzipFile("", "wb", 6, file, mtime=0) if packed else nullcontext(file) as target:
            for piece in pieces:
                target.write(piece.encode("utf-8", errors="replace"))

    atomic_write(path, fill)
    return path.stat().st_size
