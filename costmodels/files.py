"""Reading a file that somebody else has named: a device, or a pipe that never ends, must not fill the memory."""

from __future__ import annotations

import errno
from pathlib import Path

MOST_BYTES = 64 << 20
"""Far more than any file has that is written by hand or by us and read whole."""


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: if it cannot be read, or has more than ``most`` bytes.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EOVERFLOW, f"more than {most:,} bytes", str(path))
    return content
