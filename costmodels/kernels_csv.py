"""Kernel times of one model on one GPU from a folder of CSV files, attention of mixed steps measured jointly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodels.grids import Curve, FloatArray, Grid
from costmodels.hardware import LlmShape
from costmodels.kernels import KernelError, KernelSource, Steps, context_of

ATTENTION, DENSE, PER_SEQUENCE = "kernel_attention.csv", "kernel_dense.csv", "kernel_per_sequence.csv"

META = "kernel_meta.yaml"

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")

PER_LAYER = {
    "qkv_proj": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "down_proj": 1,
    "act_fn": 1,
    "rotary_emb": 1,
    "layernorm": 2,
}
"""How often each dense kernel runs in a layer."""

ONCE = ("embedding", "final_layernorm")

SAMPLED = ("lm_head", "sampler")

US = 1000.0


@dataclass(frozen=True, eq=False, kw_only=True)
class CsvKernels(KernelSource):
    """Kernel times in the form of :func:`read_csv_kernels`.

    Several prefills of a step are alike and the decodes' attention is looked up with one of them. A chunk longer
    than any measured is several of the longest with as many pairs together.
    """

    joint: Grid
    """Attention of a layer with prefill and decodes, over ``AXES``."""
    prefill: Grid
    decode: Grid
    layer: Curve
    once: Curve
    sampled: Curve

    def gpu_ns(self, steps: Steps) -> FloatArray:
        once = np.where(steps.tokens > 0, self.once(steps.tokens), 0.0)
        times = self.llm.layers * (self.layer(steps.tokens) + self._attention(steps)) + once
        return np.asarray(times + self.sampled(steps.sequences)) * US

    def _attention(self, steps: Steps) -> FloatArray:
        decodes, context = steps.n_decode, steps.mean_context
        pieces = np.maximum(steps.n_prefill, np.ceil(steps.prefill_tokens / self.prefill.axes[0][-1]))
        chunk = steps.prefill_tokens / np.maximum(pieces, 1)
        before = context_of(chunk, steps.prefill_pairs / np.maximum(pieces, 1))
        mixed, prefills = (decodes > 0) & (pieces > 0), pieces > 0
        # Most often there is one step to look up, and then one of these tables has it.
        alone = np.where(prefills, self.prefill(chunk, before), 0.0) if prefills.any() else np.zeros(prefills.shape)
        with_one = np.where(mixed, self.joint(chunk, before, decodes, context), alone) if mixed.any() else alone
        first = with_one if prefills.all() else np.where(prefills, with_one, self.decode(decodes, context))
        return np.asarray(first + np.maximum(pieces - 1, 0) * alone)

    def measured(self, steps: Steps) -> list[tuple[str, NDArray[Any], float]]:
        chunk, before, _, context = (float(axis[-1]) for axis in self.joint.axes)
        beside, alone = (steps.n_decode * (is_mixed == (steps.n_prefill > 0)) for is_mixed in (True, False))
        return [
            ("tokens per step", steps.tokens, self.layer.most),
            ("prefill chunk", steps.chunk, chunk),
            ("prefill context", steps.prefill_context, before),
            ("decodes beside a prefill", beside, float(self.joint.axes[2][-1])),
            ("decodes", alone, float(self.decode.axes[0][-1])),
            ("decode context", steps.mean_context, context),
            ("sequences", steps.sequences, self.sampled.most),
        ]


def read_csv_kernels(folder: Path, llm: LlmShape, host_ns: int = 0) -> CsvKernels:
    """Read the kernel times of ``llm`` from a folder; all in microseconds.

    ``kernel_attention.csv`` has a layer's attention over ``prefill_chunk, kv_prefill`` (tokens in the cache before
    the chunk), ``n_decode, kv_decode`` (mean context of a decode); ``kernel_dense.csv`` a layer's other kernels by
    ``layer`` and ``tokens``; ``kernel_per_sequence.csv`` head and sampler by ``sequences``; ``kernel_meta.yaml`` says
    ``hardware`` and ``vllm_version``.

    Raises:
        KernelError: if a file is missing, lacks columns or kernels, or holds times that are not positive.
    """
    attention = _read(folder / ATTENTION, [*AXES, "time_us"])
    dense = _read(folder / DENSE, ["layer", "tokens", "time_us"])
    sampled = _read(folder / PER_SEQUENCE, ["layer", "sequences", "time_us"])
    meta = _meta(folder / META)
    both = attention[(attention["prefill_chunk"] > 0) & (attention["n_decode"] > 0)]
    return CsvKernels(
        device=meta.get("hardware", folder.name).lower(),
        llm=llm,
        engine_version=meta.get("vllm_version", "unknown"),
        host_ns=host_ns,
        about={
            "source": f"kernel times in {folder.name}, vLLM {meta.get('vllm_version', 'of an unknown version')}",
            "model_measured": meta.get("model", "unknown"),
        },
        joint=_grid(both, AXES, folder),
        prefill=_grid(attention[attention["n_decode"] == 0], AXES[:2], folder),
        decode=_grid(attention[attention["prefill_chunk"] == 0], AXES[2:], folder),
        layer=_sum(dense, "tokens", PER_LAYER, folder / DENSE),
        once=_sum(dense, "tokens", dict.fromkeys(ONCE, 1), folder / DENSE),
        sampled=_sum(sampled, "sequences", dict.fromkeys(SAMPLED, 1), folder / PER_SEQUENCE),
    )


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as e:
        raise KernelError(f"kernel table {path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise KernelError(f"kernel table {path} has no column {missing[0]} (columns: {', '.join(columns)})")
    numbers = frame[[c for c in columns if c != "layer"]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
    bad = np.flatnonzero(~(np.isfinite(numbers).all(axis=1) & (numbers >= 0).all(axis=1) & (numbers[:, -1] > 0)))
    if len(bad):
        raise KernelError(
            f"kernel table {path}, line {bad[0] + 2}: every number must be 0 or more and the time positive"
        )
    return frame[columns]


def _meta(path: Path) -> dict[str, str]:
    """Return the top-level plain values of a YAML file; none where there is no file."""
    if not path.is_file():
        return {}
    return dict(re.findall(r"^(\w+): *'?([^'\n]+)'?$", path.read_text(encoding="utf-8"), re.MULTILINE))


def _grid(rows: pd.DataFrame, axes: tuple[str, ...], folder: Path) -> Grid:
    if rows.empty:
        raise KernelError(f"kernel table {folder / ATTENTION} lacks decode-only, prefill-only or mixed steps")
    if rows.duplicated(list(axes)).any():
        raise KernelError(f"kernel table {folder / ATTENTION} has two times for one shape")
    levels = [np.array(sorted(rows[a].unique()), dtype=np.float64) for a in axes]
    time = np.full([len(level) for level in levels], np.nan)
    time[tuple(np.searchsorted(level, rows[a]) for a, level in zip(axes, levels, strict=True))] = rows["time_us"]
    try:
        return Grid(tuple(levels), time)
    except ValueError as e:
        raise KernelError(f"kernel table {folder / ATTENTION}: {e}") from None


def _sum(rows: pd.DataFrame, by: str, kernels: dict[str, int], path: Path) -> Curve:
    """Return the time of several kernels together; all must be measured at the same points."""
    table = rows.pivot_table(index=by, columns="layer", values="time_us", aggfunc="mean")
    missing = [k for k in kernels if k not in table.columns]
    if missing:
        raise KernelError(f"kernel table {path} has no kernel {missing[0]} (kernels: {', '.join(kernels)})")
    part = table[list(kernels)]
    if part.isna().any(axis=None):
        raise KernelError(f"kernel table {path}: {', '.join(kernels)} are not measured at the same {by}")
    times = part.to_numpy() @ np.array(list(kernels.values()), dtype=np.float64)
    return Curve(part.index.to_numpy(dtype=np.float64), times)
