"""What an engine runs on and how it is configured, as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any, depth: int = 6) -> Any:
    """Return a configuration object as JSON types; what has no such form is written as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if depth == 0:
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v, depth - 1) for v in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name, None), depth - 1) for f in dataclasses.fields(value)}
    if hasattr(value, "to_diff_dict"):
        return plain(json.loads(value.to_json_string()), depth - 1)
    return name_of(value) if isinstance(value, type) else str(value)


def name_of(value: Any) -> Any:
    """Return a class by its dotted name, and anything else as it is."""
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else value


def device(torch: Any) -> dict[str, str | None]:
    """Return ``device``, what computes, and ``driver``, ``None`` on a CPU."""
    if not torch.cuda.is_available():
        return {"device": _processor(), "driver": None}
    return {"device": str(torch.cuda.get_device_name()), "driver": _driver()}


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    try:
        words = path.read_text().split("\n")[0].split()
    except OSError:
        return None
    return next((w for w in words if w[:1].isdigit() and "." in w), None)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()} x {os.cpu_count()}"
