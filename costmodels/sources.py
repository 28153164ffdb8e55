"""Kernel sources by name, as commands take them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.kernels import KernelError, KernelSource
from costmodels.kernels_csv import read_csv_kernels
from costmodels.kernels_nvidia import nvidia_kernels
from costmodels.roofline import roofline

PARAMETERS = {
    "csv": ("folder", "llm", "host_ns"),
    "nvidia": ("gpu", "llm", "tp", "dtype", "host_ns"),
    "roofline": ("gpu", "llm", "tp", "dtype", "link", "host_ns"),
}

NEEDED = {"csv": ("folder", "llm"), "nvidia": ("gpu", "llm"), "roofline": ("gpu", "llm")}

WEIGHT_BYTES = {"bf16": 2, "fp8": 1}


def load_kernel_source(text: str) -> KernelSource:
    """Read ``"nvidia:gpu=h100-sxm,llm=llama-3.1-8b,tp=2"``, ``"roofline:gpu=l4,..."`` or ``"csv:folder=...,llm=..."``.

    ``dtype`` is ``bf16`` or ``fp8``, by default the model's own; ``host_ns`` what the host adds to each step.

    Raises:
        CostModelError: if the kind or a parameter is unknown, missing, given twice or not valid.
    """
    kind, _, rest = text.partition(":")
    if kind not in PARAMETERS:
        raise KernelError(
            f"kernels {text}: unknown kind {kind!r}{_nearest(kind, PARAMETERS)} ({', '.join(PARAMETERS)})"
        )
    given = _parse(text, rest, PARAMETERS[kind])
    for key in NEEDED[kind]:
        if key not in given:
            raise KernelError(f"kernels {text}: {key} is missing")
    llm = with_dtype(load_llm(given["llm"]), given.get("dtype"))
    tp, host_ns = _number(text, "tp", given.get("tp", "1")), _number(text, "host_ns", given.get("host_ns", "0"))
    if kind == "csv":
        return read_csv_kernels(Path(given["folder"]), llm, host_ns)
    if kind == "nvidia":
        return nvidia_kernels(llm, given["gpu"], tp, host_ns)
    return roofline(llm, load_gpu(given["gpu"]), tp, given.get("link"), host_ns)


def with_dtype(llm: LlmShape, dtype: str | None) -> LlmShape:
    """Return the model with the weights of its layers in ``dtype``; as it is where that is None.

    Raises:
        KernelError: if there is no such data type.
    """
    if dtype is None:
        return llm
    if dtype not in WEIGHT_BYTES:
        raise KernelError(f"unknown dtype {dtype!r}{_nearest(dtype, WEIGHT_BYTES)} ({', '.join(WEIGHT_BYTES)})")
    if WEIGHT_BYTES[dtype] == llm.linear_bytes:
        return llm
    name = llm.name.removesuffix("-fp8") + "-fp8" * (dtype == "fp8")
    return replace(llm, name=name, linear_bytes=WEIGHT_BYTES[dtype])


def _parse(text: str, rest: str, known: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            what = "unknown parameter" if equals else "expected name=value, not"
            raise KernelError(f"kernels {text}: {what} {part!r}{_nearest(key, known)} (parameters: {', '.join(known)})")
        if key in given:
            raise KernelError(f"kernels {text}: {key} is given twice")
        given[key] = value
    return given


def _number(text: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 13 and (key != "tp" or int(value) > 0)):
        raise KernelError(f"kernels {text}: {key} is {value!r}; it must be a whole number")
    return int(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
