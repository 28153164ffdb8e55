from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from costmodels.grids import FloatArray
from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.kernel_cost import KernelCost
from costmodels.kernels import KernelError, KernelSource, Steps, compose_profile, step_grid
from costmodels.kernels_csv import AXES, ONCE, PER_LAYER, SAMPLED, CsvKernels, read_csv_kernels
from costmodels.parallel import prefill_cost
from costmodels.prefill import PrefillCost
from costmodels.profile import read_profile, write_profile
from costmodels.roofline import LAUNCHES_US, roofline
from tests.seeded import cases, whole, wide

TINY = LlmShape("tiny", layers=3, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocab=100)

CHUNKS, CONTEXTS, DECODES = (0, 16, 64, 256), (0, 16, 512), (0, 1, 4, 16)


def attention_us(chunk: Any, before: Any, n: Any, context: Any) -> Any:
    """Attention that a table can say exactly at its points: bilinear in what it depends on."""
    return 2.0 + 0.5 * chunk + 0.01 * chunk * before + 0.25 * n + 0.02 * n * context


def layer_us(tokens: Any) -> Any:
    return 8.0 + 0.125 * tokens


def write_tables(folder: Path) -> None:
    """Write kernel tables of a made-up GPU whose times are known in closed form."""
    rows = [
        (c, before, n, context, attention_us(c, before, n, context))
        for c in CHUNKS
        for before in (CONTEXTS if c else (0,))
        for n in DECODES
        for context in (CONTEXTS if n else (0,))
        if c + n
    ]
    pd.DataFrame(rows, columns=[*AXES, "time_us"]).to_csv(folder / "kernel_attention.csv", index=False)
    tokens = (1, 8, 64, 512)
    calls = sum(PER_LAYER.values())
    dense = [(k, t, layer_us(t) / calls) for k in PER_LAYER for t in tokens]
    dense += [(k, t, 1.5 + 0.01 * t) for k in ONCE for t in tokens]
    pd.DataFrame(dense, columns=["layer", "tokens", "time_us"]).to_csv(folder / "kernel_dense.csv", index=False)
    sampled = [(k, s, 10.0 + s) for k in SAMPLED for s in (1, 64)]
    pd.DataFrame(sampled, columns=["layer", "sequences", "time_us"]).to_csv(
        folder / "kernel_per_sequence.csv", index=False
    )
    (folder / "kernel_meta.yaml").write_text("hardware: TOY\nvllm_version: 0.19.0\ntp_degrees: [1]\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[int, CsvKernels]:
    """The same tables, without and with a host's time."""
    folder = tmp_path_factory.mktemp("toy")
    write_tables(folder)
    return {host_ns: read_csv_kernels(folder, TINY, host_ns) for host_ns in (0, 7)}


def expected_ns(n: int, context: int, chunk: int, before: int, host_ns: int = 0) -> int:
    tokens, sequences = n + chunk, n + (chunk > 0)
    layers = 3 * (layer_us(tokens) + attention_us(chunk, before, n, context))
    once = 2 * (1.5 + 0.01 * tokens) + 2 * (10.0 + sequences)
    return host_ns + int(np.ceil(round(1000 * (layers + once), 6)))


def features(n: int, context: int, chunk: int, before: int) -> NDArray[np.int64]:
    return np.array(
        [[n, n * context, context * (n > 0), int(chunk > 0), chunk, chunk * before + chunk * (chunk + 1) // 2]]
    )


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(0, 16),
    context=st.integers(0, 512),
    chunk=st.just(0) | st.integers(16, 256),
    before=st.integers(0, 512),
    host=st.sampled_from([0, 7]),
)
def test_a_step_is_layers_times_kernels_plus_what_runs_once(
    sources: dict[int, CsvKernels], n: int, context: int, chunk: int, before: int, host: int
) -> None:
    n = n or int(not chunk)
    context, before = context * (n > 0), before * (chunk > 0)
    step = features(n, context, chunk, before)
    assert abs(int(sources[host].duration_ns(step)[0]) - expected_ns(n, context, chunk, before, host)) <= 1
    assert sources[host].outside(step) is None


def test_the_files_say_what_was_measured(folder: Path) -> None:
    source = read_csv_kernels(folder, TINY)
    assert (source.device, source.engine_version, source.estimated) == ("toy", "0.19.0", False)


def test_alike_prefills_cost_as_many_of_one(folder: Path) -> None:
    source = read_csv_kernels(folder, TINY)
    chunk, before, n = 64, 16, 3
    pairs = n * (chunk * before + chunk * (chunk + 1) // 2)
    steps = Steps.of(np.array([[0, 0, 0, n, n * chunk, pairs]]))
    attention = 3 * n * attention_us(chunk, before, 0, 0)
    rest = 3 * layer_us(n * chunk) + 2 * (1.5 + 0.01 * n * chunk) + 2 * (10.0 + n)
    assert source.gpu_ns(steps)[0] == pytest.approx(1000 * (attention + rest))


def test_a_chunk_longer_than_any_measured_is_several_with_as_many_pairs(folder: Path) -> None:
    source = read_csv_kernels(folder, TINY)
    long = features(0, 0, 512, 0)
    in_two = source._attention(Steps.of(np.array([[0, 0, 0, 2, 512, 512 * 513 // 2]])))
    assert source._attention(Steps.of(long)).tolist() == in_two.tolist()
    says = source.outside(np.concatenate([long, features(1, 16, 16, 0), features(32, 16, 0, 0)]))
    assert says is not None
    assert says.startswith("2 of 3 steps are outside what was measured")
    assert "prefill chunk up to 512 (measured to 256)" in says
    assert "decodes up to 32 (measured to 16)" in says


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("kernel_dense.csv", lambda t: t[t["layer"] != "o_proj"], "has no kernel o_proj"),
        ("kernel_dense.csv", lambda t: t.drop(columns="tokens"), "has no column tokens"),
        ("kernel_dense.csv", lambda t: t.drop(index=0), "are not measured at the same tokens"),
        ("kernel_per_sequence.csv", lambda t: t.assign(time_us=0.0), "line 2: every number must be 0 or more and the"),
        ("kernel_attention.csv", lambda t: t.assign(time_us="x"), "line 2: every number must be"),
        ("kernel_attention.csv", lambda t: t[t["n_decode"] == 0], "lacks decode-only, prefill-only or mixed steps"),
        ("kernel_attention.csv", lambda t: pd.concat([t, t.tail(1)]), "two times for one shape"),
    ],
)
def test_bad_tables_are_refused(folder: Path, name: str, change: Any, says: str) -> None:
    change(pd.read_csv(folder / name)).to_csv(folder / name, index=False)
    with pytest.raises(KernelError, match=name) as e:
        read_csv_kernels(folder, TINY)
    assert says in str(e.value)


def test_a_missing_table_is_named(folder: Path) -> None:
    (folder / "kernel_dense.csv").unlink()
    with pytest.raises(KernelError, match=r"kernel_dense\.csv cannot be read: No such file"):
        read_csv_kernels(folder, TINY)


def test_a_profile_is_composed_alike_every_time_and_survives_the_file(folder: Path, tmp_path: Path) -> None:
    source = read_csv_kernels(folder, TINY, host_ns=5000)
    profile = compose_profile(source)
    assert compose_profile(source).frame.equals(profile.frame)
    assert profile.setting == {
        "device": "toy",
        "model": "tiny",
        "dtype": "bf16",
        "tensor_parallel": 1,
        "engine": "vllm",
        "engine_version": "0.19.0",
    }
    assert (profile.frame["host_ns"] == 5000).all()
    assert len(set(profile.shape.tolist())) == len(profile) == len(step_grid())
    assert "outside what was measured" in profile.warnings[0]
    write_profile(tmp_path / "p.parquet", profile.frame, profile.provenance)
    assert read_profile(tmp_path / "p.parquet").warnings == profile.warnings


def test_the_grid_has_decode_only_prefill_only_and_mixed_steps_once_each() -> None:
    grid = step_grid()
    n, total, longest, m, c, pairs = grid.T
    assert len(np.unique(grid, axis=0)) == len(grid)
    assert {(bool(a), bool(b)) for a, b in zip(n, m, strict=True)} == {(True, False), (False, True), (True, True)}
    assert (total == n * longest).all()
    assert ((pairs - c * (c + 1) // 2) % np.maximum(c, 1) == 0).all()
    assert total.max() <= 1 << 18


def test_a_grid_without_steps_is_refused() -> None:
    with pytest.raises(KernelError, match="no steps"):
        step_grid(decodes=[0], chunks=[0])


@cases(100, wide(4096, 1), wide(16_000), whole(1, 5))
def test_the_context_of_prefills_follows_from_their_pairs(chunk: int, before: int, n: int) -> None:
    pairs = n * (chunk * before + chunk * (chunk + 1) // 2)
    steps = Steps.of(np.array([[0, 0, 0, n, n * chunk, pairs]]))
    assert steps.chunk[0] == chunk
    assert steps.prefill_context[0] == pytest.approx(before, abs=1e-6)


def test_a_roofline_is_the_prefill_cost_with_launches_for_its_host_and_says_that_it_is_estimated() -> None:
    llm, gpu = load_llm("llama-3.1-8b"), load_gpu("l4")
    source, cost = roofline(llm, gpu, host_ns=1_000_000), prefill_cost(llm, gpu)
    assert isinstance(cost, PrefillCost)
    grid = step_grid(decodes=(0, 1, 64), chunks=(0, 512))
    more_ns = 1_000_000 - cost.host_fs // 10**6 + round(1000 * LAUNCHES_US) * llm.layers
    assert source.duration_ns(grid).tolist() == [cost.step_ns(*row) + more_ns for row in grid.tolist()]
    profile = compose_profile(source, grid)
    assert profile.estimated
    assert profile.setting["device"] == "l4 (estimated)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Counting(KernelSource):
    """Takes a microsecond per token of context."""

    def gpu_ns(self, steps: Steps) -> FloatArray:
        return 1000.0 * steps.decode_context + 1000.0 * steps.prefill_tokens

    def measured(self, steps: Steps) -> list[tuple[str, NDArray[Any], float]]:
        return [("decodes", steps.n_decode, 4.0)]


def test_a_cost_of_kernels_runs_as_it_steps_and_warns_once() -> None:
    cost = KernelCost(Counting(device="toy", llm=TINY, host_ns=10))
    run = cost.decode_run_ns(4, 100, 40, 5)
    assert run.tolist() == [cost.step_ns(4, 100 + 4 * j, 40 + j, 0, 0, 0) for j in range(5)]
    assert cost.step_ns(0, 0, 0, 1, 7, 28) == 7010
    with pytest.warns(UserWarning, match=r"1 of 1 steps are outside .* decodes up to 5 \(measured to 4\)"):
        cost.step_ns(5, 50, 10, 0, 0, 0)
    assert cost.step_ns(6, 60, 10, 0, 0, 0) == 60_010
