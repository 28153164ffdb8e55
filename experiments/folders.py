"""Results folders: made in one piece, never written over, never shared by two runs."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.config import ConfigError

PART = ".part-"
"""Begins the names of folders that are being written."""

RUNS = Path("runs")
"""Where results go without ``--out``."""

Fill = Callable[[Path], None]


@contextmanager
def whole_folder(target: Path, owner: str | None = None) -> Iterator[Path]:
    """Give a new folder to write into, which becomes ``target`` only when the block has ended well.

    Args:
        target: the folder in the end.
        owner: what :func:`remove_parts` and :func:`in_progress` know it by if this process is killed.

    Raises:
        FileExistsError: at the end, if ``target`` is a folder with something in it by then.
        OSError: if nothing can be made where ``target`` should be.
    """
    part = target.parent / f"{PART}{owner or new_owner()}-{target.name[:64]}-{secrets.token_hex(8)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    except FileExistsError as e:
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", e.filename) from None
    except OSError as e:
        raise type(e)(e.errno, e.strerror, str(target)) from None
    try:
        yield part
        try:
            part.rename(target)
        except OSError as e:
            if e.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, "exists already", str(target)) from None
            raise
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def claim(out: Path | None, stem: str, fill: Fill, *, may_resume: bool = True) -> Path:
    """Make the results folder with ``fill``'s files in it, and return its path.

    Without ``out`` it is ``runs/STEM``, or ``runs/STEM-2`` and so on where those exist.

    Raises:
        ConfigError: if ``out`` exists and is not empty.
    """
    if out is not None:
        check_free(out, may_resume)
        try:
            with whole_folder(out) as part:
                fill(part)
        except FileExistsError:
            raise _not_empty(out, may_resume) from None
        return out
    for k in itertools.count(1):
        target = RUNS / (stem if k == 1 else f"{stem}-{k}")
        if target.exists():
            continue
        try:
            with whole_folder(target) as part:
                fill(part)
        except FileExistsError:
            continue
        return target
    raise AssertionError("unreachable")


def check_free(out: Path | None, may_resume: bool = True) -> None:
    """Refuse a results folder that has something in it, before any work is done.

    Raises:
        ConfigError: if it exists and is not an empty folder, or cannot be made.
    """
    if out is None:
        return
    if not out.exists():
        nearest = next(folder for folder in out.absolute().parents if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            what = "cannot be written" if nearest.is_dir() else "is a file"
            raise ConfigError(f"--out {out} cannot be made, for {nearest} {what}; give another folder")
        return
    if not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give a folder that does not exist yet")
    if any(out.iterdir()):
        raise _not_empty(out, may_resume)


def latest(stem: str) -> Path | None:
    """Return the newest of ``runs/STEM``, ``runs/STEM-2`` and so on, if there is one."""
    found = None
    for k in itertools.count(1):
        target = RUNS / (stem if k == 1 else f"{stem}-{k}")
        if not target.is_dir():
            return found
        found = target
    return None


def new_owner() -> str:
    """Return a name for who writes folders; process numbers are not unique among machines that share a disk."""
    return secrets.token_hex(4)


def in_progress(folder: Path, owner: str) -> list[str]:
    """Return the names of the folders in ``folder`` that ``owner`` has begun and not ended, each as often as begun."""
    parts = folder.glob(f"{PART}{owner}-*")
    return sorted(part.name.removeprefix(f"{PART}{owner}-").rsplit("-", 1)[0] for part in parts)


def remove_parts(folder: Path, owner: str = "*") -> None:
    """Remove what processes killed on behalf of ``owner``, by default anybody, were still writing in ``folder``."""
    for part in folder.glob(f"{PART}{owner}-*"):
        shutil.rmtree(part, ignore_errors=True)


def _not_empty(out: Path, may_resume: bool) -> ConfigError:
    more = ", or --resume to go on with it" if may_resume else ""
    return ConfigError(f"--out {out} exists and is not empty; give another folder{more}")
