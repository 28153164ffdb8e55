"""Who may write into a sweep's folder: one driver, or the shards of one division.

The operating system holds the locks (``flock``) and lets go of them when a process ends, however it ends, so nothing
is left to clean up after ``kill -9``. The files say who holds them, for people.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from costmodels.files import read_bounded
from experiments.config import ConfigError
from experiments.shards import Shard

LOCK = "sweep.lock"

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems that do not know locks."""


PATIENCE_S = 1.0
"""How long a lock is asked for: another process's look at it, or its end, holds it for a moment."""


class _Held(Exception):
    """Another process has the lock."""


@contextmanager
def driving(folder: Path, shard: Shard | None) -> Iterator[bool]:
    """Hold a sweep's folder while the block runs.

    Args:
        folder: that of the sweep.
        shard: several can hold a folder at once, each once; ``None`` is for all of it.

    Yields:
        Whether nobody else can be writing. Where the file system has no locks that is never so; two drivers would
        then do the same work twice, but lose none, for every run's folder is made in one piece.

    Raises:
        ConfigError: if it is held; the message has the process and its host.
        OSError: if the lock's file cannot be written.
    """
    with contextlib.ExitStack() as held:
        if shard is None:
            try:
                yield held.enter_context(_lock(folder / LOCK, fcntl.LOCK_EX))
            except _Held:
                raise _busy(folder) from None
            return
        try:
            held.enter_context(_lock(folder / LOCK, fcntl.LOCK_SH))
            held.enter_context(_lock(folder / shard.lock, fcntl.LOCK_EX))
        except _Held:
            raise _busy(folder, shard) from None
        for path in _live(folder):
            if not path.name.endswith(f"-of-{shard.count}.lock"):
                raise ConfigError(
                    f"--shard {shard}: {_holder(path)} is running {_name(path)} of the same sweep in {folder}; all "
                    "shards need the same number of them"
                )
        yield False


@contextmanager
def _lock(path: Path, how: int) -> Iterator[bool]:
    """Hold a lock, with this process's name in its file; say whether the file system has locks."""
    file = _locked(path, how)
    if file is None:
        yield False
        return
    try:
        if how == fcntl.LOCK_EX:
            about = {"host": socket.gethostname(), "process": os.getpid(), "since": f"{datetime.now(UTC):%FT%TZ}"}
            os.ftruncate(file, 0)
            os.write(file, json.dumps(about).encode())
        yield True
    finally:
        # Only the one holder removes the file; of those who share it, the last.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        os.close(file)


def _locked(path: Path, how: int) -> int | None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            # Whoever held it before may have removed the file that is locked now.
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise _Held from None
            time.sleep(PATIENCE_S / 20)
        except FileNotFoundError:
            pass
        except OSError as e:
            os.close(file)
            if e.errno in NO_LOCKS:
                return None
            raise
        os.close(file)


def _live(folder: Path) -> list[Path]:
    """Return the files of the locks that shards hold at this moment, in this process or another."""
    live = []
    for path in sorted(folder.glob("shard-*.lock")):
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            live.append(path)
        finally:
            os.close(file)
    return live


def _busy(folder: Path, shard: Shard | None = None) -> ConfigError:
    shards = _live(folder)
    own = [path for path in shards if shard is not None and path.name == shard.lock]
    holders = own or shards or [folder / LOCK]
    who = "; ".join(f"{_holder(path)} runs {_name(path)}" for path in holders[:3])
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return ConfigError(
        f"another sweep is writing into {folder}: {who}{more}; wait for it or end it, then --resume goes on"
    )


def _name(path: Path) -> str:
    parts = path.stem.split("-")
    return "all of it" if path.name == LOCK else f"shard {parts[1]}/{parts[-1]}"


def _holder(path: Path) -> str:
    try:
        about = json.loads(read_bounded(path))
        return f"process {about['process']} on {about['host']}, since {about['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process"
