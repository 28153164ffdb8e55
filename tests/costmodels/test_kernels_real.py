"""Kernel times of Llama-3.1-8B on an RTX 4090 beside a run of vLLM on the same card."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from costmodels.grids import Grid
from costmodels.hardware import load_llm
from costmodels.kernels import compose_profile, step_grid
from costmodels.kernels_csv import AXES, CsvKernels, read_csv_kernels

pytestmark = pytest.mark.real

POOL = 2588 * 16
"""Tokens of the run's KV pool."""


@pytest.fixture(scope="module")
def folder() -> Path:
    shared = Path(os.environ.get("PREFILLSIM_MEASURED", Path(__file__).parents[3] / "shared" / "measured"))
    path = shared / "rtx4090-llama3.1-8b"
    if not path.is_dir():
        pytest.skip("the kernel tables are neither in $PREFILLSIM_MEASURED nor in ../shared/measured")
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> CsvKernels:
    return read_csv_kernels(folder, load_llm("llama-3.1-8b"))


def test_every_attention_time_comes_back(folder: Path, source: CsvKernels) -> None:
    rows = pd.read_csv(folder / "kernel_attention.csv")
    both = rows[(rows["prefill_chunk"] > 0) & (rows["n_decode"] > 0)]
    read = source.joint(*(both[a].to_numpy() for a in AXES))
    np.testing.assert_allclose(read, both["time_us"])


def test_a_step_is_the_sum_of_its_rows(folder: Path, source: CsvKernels) -> None:
    attention, dense, sampled = (
        pd.read_csv(folder / f"kernel_{name}.csv") for name in ("attention", "dense", "per_sequence")
    )
    n, context, chunk, before = 64, 1024, 512, 2048
    at = attention.query(
        f"prefill_chunk == {chunk} and kv_prefill == {before} and n_decode == {n} and kv_decode == {context}"
    )
    by = dense[dense["tokens"] == n + chunk].set_index("layer")["time_us"]
    layer = by.drop(["embedding", "final_layernorm"]).sum() + by["layernorm"]
    heads = sampled.set_index(["sequences", "layer"])["time_us"]
    # 65 sequences lie between 64 and 80, which were measured.
    head = sum(heads[64, k] + (heads[80, k] - heads[64, k]) / 16 for k in ("lm_head", "sampler"))
    us = 32 * (float(at["time_us"].iloc[0]) + layer) + by["embedding"] + by["final_layernorm"] + head
    step = [[n, n * context, context, 1, chunk, chunk * before + chunk * (chunk + 1) // 2]]
    assert source.duration_ns(np.array(step))[0] == int(np.ceil(1000 * us))


def test_steps_of_the_run_that_only_decode_take_what_the_kernels_take(folder: Path, source: CsvKernels) -> None:
    """Nothing is left for the host, which prepares the next step while the GPU works (asynchronous scheduling)."""
    run = pd.read_csv(folder / "timeseries.csv")
    steady = run["prompt_throughput"].rolling(3, center=True).max().eq(0) & run["running"].diff().abs().le(1)
    drained = run[steady & (run["waiting"] == 0) & (run["running"] >= 10)]
    assert len(drained) >= 4
    n = drained["running"].to_numpy()
    held = (drained["kv_cache_pct"] / 100 * POOL).to_numpy().astype(np.int64)
    steps = np.stack([n, held, held // n + 1, 0 * n, 0 * n, 0 * n], axis=1)
    composed_ms = source.duration_ns(steps) / 1e6
    # A second's tokens over the sequences that were running as it ended.
    measured_ms = 1000 * n / drained["gen_throughput"].to_numpy()
    assert np.mean(composed_ms / measured_ms) == pytest.approx(1.0, abs=0.07)


@pytest.mark.parametrize(("axis", "most"), [("kv_prefill", 0.02), ("kv_decode", 0.03), ("n_decode", 0.08)])
def test_points_left_out_are_found_again_between_their_neighbours(folder: Path, axis: str, most: float) -> None:
    """At twice the spacing of the tables, so errors between their own points are smaller."""
    rows = pd.read_csv(folder / "kernel_attention.csv").query("prefill_chunk > 0 and n_decode > 0")
    levels = sorted(rows[axis].unique())
    kept = set(levels[::2]) | {levels[-1]}
    known, left = rows[rows[axis].isin(kept)], rows[~rows[axis].isin(kept)]
    axes = tuple(np.array(sorted(known[a].unique()), dtype=np.float64) for a in AXES)
    time = np.full([len(a) for a in axes], np.nan)
    time[tuple(np.searchsorted(a, known[name]) for a, name in zip(axes, AXES, strict=True))] = known["time_us"]
    error = Grid(axes, time)(*(left[a].to_numpy() for a in AXES)) / left["time_us"].to_numpy() - 1
    assert np.mean(np.abs(error)) < most


def test_a_profile_within_the_tables_has_no_note_and_few_times_that_fall(source: CsvKernels) -> None:
    profile = compose_profile(source, step_grid(decodes=(0, 1, 4, 16, 64, 128), chunks=(0, 64, 256, 1024, 1900)))
    assert "notes" in profile.provenance
    assert not profile.provenance["notes"]
    assert not profile.outlier.any()
    assert profile.non_monotone < 0.1 * len(profile)
