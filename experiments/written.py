"""Single files that commands write where the user says."""

from __future__ import annotations

import gzip
from pathlib import Path

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


def write_text(path: Path, text: str) -> int:
    """Write a file, compressed where its name ends with ``.gz``; return its size in bytes.

    Raises:
        OSError: if it cannot be written; what was there is kept then.
    """
    content = text.encode("utf-8", errors="replace")
    if path.name.endswith(".gz"):
        content = gzip.compress(content, 6, mtime=0)
    atomic_write(path, content)
    return len(content)
