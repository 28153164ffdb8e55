"""From a path to text: what keeps a file from being read at all."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from traces.readers.problems import Problems

COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Source:
    """A file's content and what kind of file that makes it."""

    path: Path
    kind: str
    """``csv``, ``jsonl`` or ``parquet``."""
    text: str
    """Without byte order mark, lines ended by a single newline character; empty for Parquet."""


def load(path: Path, problems: Problems) -> Source:
    """Read ``path``, whatever its name ends in, and tell its kind by its first bytes.

    Raises:
        Unreadable: if it is missing, not a file, empty, compressed or not text.
    """
    data = _bytes(path, problems)
    if data.startswith(b"PAR1"):
        problems.unit = "row"
        return Source(path, "parquet", "")
    for magic, (what, tool) in COMPRESSED.items():
        if data.startswith(magic):
            problems.fatal(f"the file is compressed with {what}, which is not read; unpack it first ({tool})")
    text = _decode(data, problems)
    start = text.lstrip()
    if not start:
        problems.fatal("the file is empty; a trace has at least one request")
    return Source(path, "jsonl" if start[0] in "{[" else "csv", text)


def _bytes(path: Path, problems: Problems) -> bytes:
    try:
        if path.is_char_device():
            problems.fatal("this is a device; a trace is a file")
        return path.read_bytes()
    except FileNotFoundError:
        problems.fatal(f"there is no such file{_nearest(path)}")
    except IsADirectoryError:
        problems.fatal("this is a folder; a trace is one file")
    except PermissionError:
        problems.fatal("the file may not be read (permission denied)")
    except (OSError, ValueError) as e:  # a path with a zero byte is a wrong value
        problems.fatal(f"the file cannot be read ({getattr(e, 'strerror', None) or e})")


def _nearest(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_file()]
    except OSError:
        return f"; the folder {path.parent} does not exist either"
    near = difflib.get_close_matches(path.name, names, 1, 0.5)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _decode(data: bytes, problems: Problems) -> str:
    if data.startswith(UTF16):
        problems.fatal("the file is UTF-16 text, which is not read; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        problems.fatal(f"byte 0x{data[e.start]:02x} is not UTF-8 text; a trace is CSV, JSON lines or Parquet", line)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        problems.fatal("the file is binary (it has zero bytes); a trace is CSV, JSON lines or Parquet", line)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text
