"""NVIDIA's measured kernels; the package that has them is an extra, without it these tests are skipped."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, util
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.kernels import KernelError, compose_profile, step_grid
from costmodels.kernels_nvidia import NvidiaKernels, kernel_source, nvidia_kernels
from costmodels.nvidia_tables import SPECIFICATIONS, SYSTEMS, Products, System, read_all_reduce, read_attention
from costmodels.roofline import Roofline, roofline

installed = pytest.mark.skipif(util.find_spec("aiconfigurator_core") is None, reason="needs the extra [kernels]")

LLAMA = load_llm("llama-3.1-8b")
LLAMA_70B = replace(load_llm("llama-3.3-70b-fp8"), name="llama-3.1-70b", linear_bytes=2)

PAPERS = {"meta-llama/Meta-Llama-3.1-8B": LLAMA, "meta-llama/Meta-Llama-3.1-70B": LLAMA_70B}


def prefill(tokens: int, context: int = 0) -> list[int]:
    return [0, 0, 0, 1, tokens, tokens * context + tokens * (tokens + 1) // 2]


def decode(n: int, context: int) -> list[int]:
    return [n, n * context, context, 0, 0, 0]


def test_without_the_package_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(KernelError, match=r"pip install 'prefillsim\[kernels\]'"):
        nvidia_kernels(LLAMA, "h100-sxm")


@pytest.mark.parametrize("gpu", SPECIFICATIONS)
def test_what_has_specifications_only_is_no_measurement(gpu: str) -> None:
    with pytest.raises(KernelError, match=f"specifications of {gpu} but no measured kernels; use the roofline"):
        nvidia_kernels(LLAMA, gpu)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(KernelError, match=r"no measured kernels of GPU h300 \(measured: a100-80, h100-sxm"):
        nvidia_kernels(LLAMA, "h300")


def test_a_gpu_that_was_not_measured_gets_an_estimate_that_says_so() -> None:
    source = kernel_source(LLAMA, "l4")
    assert isinstance(source, Roofline)
    assert source.estimated
    assert source.device == "l4 (estimated)"


@pytest.fixture(scope="module")
def their_engine() -> Callable[[str, str, int], Any]:
    """The package's own estimator of steps, which reads the same tables with code of its own."""
    sdk = "aiconfigurator_core.sdk"
    pytest.importorskip(sdk)
    common, config, models, databases, engines = (
        import_module(f"{sdk}.{m}") for m in ("common", "config", "models", "perf_database", "rust_engine_step")
    )
    logging.disable(logging.ERROR)

    def engine(gpu: str, path: str, tp: int) -> Any:
        version = System(gpu).newest("gemm", "gemm").parent.name
        database = databases.get_database(SYSTEMS[gpu], "vllm", version)
        model_config = config.ModelConfig(
            tp_size=tp,
            gemm_quant_mode=common.GEMMQuantMode.bfloat16,
            kvcache_quant_mode=common.KVCacheQuantMode.bfloat16,
            fmha_quant_mode=common.FMHAQuantMode.bfloat16,
        )
        return engines._cached_engine_handle(models.get_model(path, model_config, "vllm"), database)

    return engine


@installed
@pytest.mark.parametrize(
    ("gpu", "path", "tp"),
    [
        *((gpu, "meta-llama/Meta-Llama-3.1-8B", 1) for gpu in SYSTEMS),
        ("a100-80", "meta-llama/Meta-Llama-3.1-70B", 8),
        ("h100-sxm", "meta-llama/Meta-Llama-3.1-70B", 8),
    ],
)
def test_steps_take_what_nvidias_own_estimator_says(
    their_engine: Callable[[str, str, int], Any], gpu: str, path: str, tp: int
) -> None:
    theirs, ours = their_engine(gpu, path, tp), nvidia_kernels(PAPERS[path], gpu, tp)
    cases = [
        *((theirs.decode_step_latency(n, s - 1, 2), decode(n, s)) for n, s in ((1, 512), (32, 1024), (128, 1024))),
        *(
            (theirs.predict_prefill_latency(1, c + before, before), prefill(c, before))
            for c, before in ((512, 0), (2048, 0), (8192, 0), (512, 8192), (2048, 2048))
        ),
        (theirs.mixed_step_latency(512, 32, 1024, 2, 0), [*decode(32, 1024)[:3], *prefill(512)[3:]]),
    ]
    mine = ours.duration_ns(np.array([step for _, step in cases])) / 1e6
    ratio = mine / np.array([ms for ms, _ in cases])
    assert np.abs(ratio - 1).max() < 0.07
    assert np.abs(ratio - 1).mean() < 0.03


@installed
@pytest.mark.parametrize("gpu", SYSTEMS)
def test_no_step_beats_the_data_sheet(gpu: str) -> None:
    source = nvidia_kernels(LLAMA, gpu)
    sheet = System(gpu).specification()["gpu"]
    grid = step_grid()
    n, total, _, _, tokens, pairs = grid.T.astype(np.float64)
    read = (LLAMA.layers * LLAMA.linear_parameters_per_layer * 2 + LLAMA.kv_bytes_per_token * total) / sheet["mem_bw"]
    flops = 2.0 * LLAMA.linear_parameters * (n + tokens) + 4 * LLAMA.layers * LLAMA.heads * LLAMA.head_dim * pairs
    seconds = source.duration_ns(grid) / 1e9
    assert (seconds >= read).all()
    assert (seconds >= flops / sheet["bfloat16_tc_flops"]).all()


@installed
@pytest.mark.parametrize("gpu", SYSTEMS)
def test_profiles_are_composed_alike_every_time_and_hardly_fall(gpu: str) -> None:
    source = nvidia_kernels(LLAMA, gpu)
    profile = compose_profile(source)
    assert compose_profile(nvidia_kernels(LLAMA, gpu)).frame.equals(profile.frame)
    assert not profile.estimated
    assert not profile.outlier.any()
    [falls] = [re.search(r"by ([0-9.]+)% at most", w) for w in profile.warnings if "take less time" in w]
    assert falls is not None
    assert float(falls[1]) < 7
    [note] = [w for w in profile.warnings if "grow with the work" in w]
    assert "128256 x 4096 (measured to 65536 x 65536)" in note
    assert {len(f["sha256"]) for f in profile.provenance["files"]} == {64}
    assert all(f["file"].startswith(f"data/{SYSTEMS[gpu]}/") for f in profile.provenance["files"])


@installed
def test_more_gpus_are_faster_but_not_by_their_number() -> None:
    grid = np.array([prefill(2048), decode(32, 1024)])
    times = [nvidia_kernels(LLAMA_70B, "h100-sxm", tp).duration_ns(grid) for tp in (2, 4, 8)]
    for few, many in pairwise(times):
        assert (many < few).all()
        assert (2 * many > few).all()


@installed
def test_measured_products_come_back() -> None:
    path = System("a100-80").newest("gemm", "gemm")
    rows = pd.read_parquet(path).query("gemm_dtype == 'bfloat16' and n == 4096 and k == 4096").sort_values("m")
    curve = Products.read(path, "a100-80", "bfloat16", bandwidth=1e18).curve(4096, 4096, 2)
    np.testing.assert_allclose(curve(rows["m"]), rows["latency"] * 1000)


@installed
def test_a_product_between_measured_sizes_lies_between_them() -> None:
    products = Products.read(System("h100-sxm").newest("gemm", "gemm"), "h100-sxm", "bfloat16", bandwidth=1e18)
    low, mid, high = (products.curve(n, 4096, 2).time for n in (16384, 28672, 51200))
    assert (np.minimum(low, high) <= mid).all()
    assert (mid <= np.maximum(low, high)).all()
    assert products.curve(131072, 4096, 2).time.tolist() == (2 * products.curve(65536, 4096, 2).time).tolist()
    assert products.outside(65536, 65536) is None


@installed
def test_no_kernel_reads_faster_than_memory() -> None:
    """The L40S's tables have decode attention at 1.5 TB/s on a card of 0.86 TB/s: its L2 cache holds 96 MB."""
    source = nvidia_kernels(LLAMA, "l40s")
    table = read_attention(System("l40s").newest("attention", "generation_attention"), "step", 32, 8, 128)
    at = np.flatnonzero(table.batches == 8)[0], np.flatnonzero(table.quantity == 2047)[0]
    kv_bytes = 8 * 2047 * LLAMA.kv_bytes_per_token_and_layer
    assert kv_bytes / (table.time[at] * 1e-6) > 1.3e12
    assert isinstance(source, NvidiaKernels)
    longer = source.duration_ns(np.array([decode(8, 2047), decode(8, 1023)]))
    assert longer[0] - longer[1] > 0.99 * LLAMA.layers * kv_bytes / 2 / 864e9 * 1e9


@installed
def test_an_odd_fp8_product_takes_no_longer_than_a_larger_one() -> None:
    path = System("h200").newest("gemm", "gemm")
    rows = pd.read_parquet(path).query("gemm_dtype == 'fp8' and n == 51200 and k == 5120").set_index("m")["latency"]
    assert rows[257] > 1.5 * rows[512]
    curve = Products.read(path, "h200", "fp8", bandwidth=1e18).curve(51200, 5120, 1)
    assert float(curve(257)) == pytest.approx(1000 * rows[512])
    assert float(curve(256)) == pytest.approx(1000 * rows[256])


@installed
def test_all_reduces_are_replayed_in_graphs_and_launched_above() -> None:
    path = System("h100-sxm").newest("comm", "custom_allreduce")
    graph, eager = (read_all_reduce(path, 8, f"vllm_{b}") for b in ("graph", "eager"))
    source = nvidia_kernels(LLAMA_70B, "h100-sxm", 8)
    tokens = np.array([1, 512, 513, 4096])
    got = source._reduce(tokens) / (2 * 80)
    expected = [graph(8192), graph(512 * 8192), eager(513 * 8192), eager(4096 * 8192)]
    np.testing.assert_allclose(got, expected)
    with pytest.raises(KernelError, match=r"no all-reduce over 3 GPUs \(measured: 2, 4, 8\)"):
        read_all_reduce(path, 3, "vllm_graph")


@installed
def test_what_was_not_measured_is_refused_or_noted() -> None:
    qwen = load_llm("qwen-32b-fp8")
    with pytest.raises(KernelError, match=r"a100-80 has no measured products in fp8 \(measured: bfloat16\)"):
        nvidia_kernels(qwen, "a100-80", 2)
    odd = LlmShape("odd", 2, 1024, 2048, heads=128, kv_heads=128, head_dim=128, vocab=1000)
    with pytest.raises(KernelError, match="no attention of 128 heads"):
        nvidia_kernels(odd, "a100-80")
    bf16 = replace(qwen, name="qwen-32b", linear_bytes=2)
    notes = compose_profile(nvidia_kernels(bf16, "a100-80", 2)).warnings
    assert "decode attention of 20 heads on 4 KV heads is that of 24 on 4" in notes


@installed
@pytest.mark.parametrize("gpu", ["a100-80", "h100-sxm", "h200"])
def test_how_far_the_roofline_is_from_measured_kernels(gpu: str) -> None:
    """What an estimate for a GPU that nobody measured may be off by."""
    grid = np.array([decode(1, 512), decode(32, 1024), decode(128, 1024), prefill(512), prefill(2048), prefill(8192)])
    estimate = roofline(LLAMA, load_gpu(gpu)).duration_ns(grid)
    ratio = estimate / nvidia_kernels(LLAMA, gpu).duration_ns(grid)
    assert ratio.min() > 0.7
    assert ratio.max() < 1.2
