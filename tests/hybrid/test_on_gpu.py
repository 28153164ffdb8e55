"""The script for a GPU, at small size on a CPU: the same code, and what it does when time runs out or a part fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.io import load_cost_model
from costmodels.profile import read_profile
from gpu_runner.hybrid import attention, on_gpu
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.on_gpu_book import Book, Part
from gpu_runner.hybrid.on_gpu_jct import pearson
from gpu_runner.hybrid.on_gpu_memory import MAIN
from gpu_runner.hybrid.on_gpu_subject import layers_that_fit, small

PARTS = ("correct", "speed", "memory", "jct", "limits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "new"
    assert on_gpu.main(["--out", str(out), "--small", "--device", "cpu"]) == 0
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / on_gpu.RESULTS).read_text())
    return document


def test_every_part_is_done(found: dict[str, Any]) -> None:
    assert {name: part["ended"] for name, part in found["parts"].items()} == dict.fromkeys(PARTS, "done")
    about = found["provenance"]
    assert about["engine"]["torch"] == torch.__version__
    assert about["engine"]["dtype"] == "bfloat16"
    assert {"driver", "device"} <= about["engine"].keys()
    assert {"date", "command", "git", "packages"} <= about.keys()


def test_bf16_agrees_with_transformers_own_pass(found: dict[str, Any]) -> None:
    part = found["parts"]["correct"]
    assert {row["cached"] > 0 for row in part["rows"]} == {False, True}
    assert part["summary"]["differences_within_0.02"]
    assert part["summary"]["same_best_where_clear"]
    assert part["summary"]["clear"] > 0


def test_throughput_is_tokens_over_the_median(found: dict[str, Any]) -> None:
    part = found["parts"]["speed"]
    summary = part["summary"]
    assert len(part["rows"]) == 5 * len(summary["tokens_per_s"])
    plain = summary["tokens_per_s"]["plain"]
    for mode, share in summary["throughput_beside_plain"].items():
        assert summary["tokens_per_s"][mode] == pytest.approx(plain * (1 + share))


def test_the_straight_line_is_the_trackers_and_prompts_of_that_length_fit(found: dict[str, Any]) -> None:
    """On a CPU allocator and tracker are the same thing, so they must agree to the byte, and the first try must fit."""
    memory, limits = found["parts"]["memory"], found["parts"]["limits"]
    assert all(row["peak_bytes"] == row["tracked_bytes"] for row in memory["rows"])
    lengths = memory["summary"]["max_input_length"]["this"]
    assert lengths["paged"]["measured"] < lengths["hybrid"]["measured"]
    assert limits["summary"]["ran"]["this"] == {mode: lengths[mode]["measured"] for mode in MAIN}


def test_the_grid_is_a_profile_and_its_model_loads(folder: Path, found: dict[str, Any]) -> None:
    profile = read_profile(folder / "jct.parquet")
    assert profile.setting["engine"] == "hybrid"
    told = found["parts"]["jct"]["summary"]["pearson"]
    assert {k: v for k, v in told.items() if k != "paper"} == pytest.approx(pearson(profile))
    assert all(-1 <= v <= 1 for v in told.values())
    rows = found["parts"]["jct"]["rows"]
    sizes = small()
    wanted = {(t, c // 16 * 16) for t in sizes.tokens for c in sizes.contexts if t + c <= sizes.longest}
    assert {(row["tokens"], row["cached"]) for row in rows} == wanted
    model = load_cost_model(str(folder / "jct.json"))
    assert model.step_ns(0, 0, 0, 1, 100, 5050) > 0


def test_what_cannot_be_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_gpu.main(["--out", str(tmp_path / "a")]) == 2
    assert "PyTorch finds no GPU here; --small runs the same" in capsys.readouterr().err
    (tmp_path / "kept").touch()
    assert on_gpu.main(["--out", str(tmp_path), "--small"]) == 2
    assert "is not empty; give a new folder" in capsys.readouterr().err
    assert on_gpu.main(["--out", str(tmp_path / "a"), "--small", "--minutes", "0"]) == 2
    assert "--minutes is 0; it must be above 0" in capsys.readouterr().err


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=40)
def test_parts_share_what_is_left(tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, float]]) -> None:
    """A part may take its share of what those before it have left; without overruns all end in time."""
    clock = Clock()
    book = Book(tmp_path_factory.mktemp("book") / "r.json", {}, 100.0, lambda _: None, clock)
    budgets: list[float] = []

    def work(part: Part, used: float) -> None:
        budgets.append(part.budget_s)
        clock.now += part.budget_s * min(used, 1.0)

    book.run({str(i): (share, lambda part, u=used: work(part, u)) for i, (share, used) in enumerate(parts)})
    assert clock.now <= 100.0 * (1 + 1e-9)
    left, waiting = 100.0, sum(share for share, _ in parts)
    for (share, used), budget in zip(parts, budgets, strict=True):
        assert budget == pytest.approx(left * share / waiting, abs=1e-9)
        left, waiting = left - budget * min(used, 1.0), waiting - share


def test_nothing_measured_is_lost(tmp_path: Path) -> None:
    """A row is in the file at once; a part that fails is told, and the next goes on; late cases are counted."""
    clock = Clock()
    path = tmp_path / "r.json"
    book = Book(path, {"who": "me"}, 10.0, lambda _: None, clock)

    def fails(part: Part) -> None:
        part.add(n=1)
        assert json.loads(path.read_text())["parts"]["a"]["rows"] == [{"n": 1}]
        raise RuntimeError("no memory\nlong story")

    def late(part: Part) -> None:
        for n in part.cases(range(9)):
            part.add(n=n)
            clock.now += part.budget_s / 2

    book.run({"a": (1, fails), "b": (1, late)})
    told = json.loads(path.read_text())
    assert book.failed
    assert told["provenance"] == {"who": "me"}
    assert told["parts"]["a"]["ended"] == "failed: RuntimeError: no memory"
    assert told["parts"]["a"]["rows"] == [{"n": 1}]
    assert (told["parts"]["b"]["ended"], told["parts"]["b"]["left_out"]) == ("out of time", 7)

    def stopped(part: Part) -> None:
        part.add(n=2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        book.run({"c": (1, stopped), "d": (1, late)})
    assert json.loads(path.read_text())["parts"]["c"]["rows"] == [{"n": 2}]


@given(st.lists(st.floats(0.1, 5), max_size=8))
@settings(deadline=None)
def test_cases_that_would_take_too_long_are_left_out(takes: list[float]) -> None:
    clock = Clock()
    part = Part(10.0, lambda: None, clock)
    ran = 0
    for seconds in part.cases(takes, lambda s: s):
        clock.now += seconds
        ran += 1
    assert clock.now <= 10.0
    assert ran + part.left_out == len(takes)


def test_layers_are_as_many_as_fit() -> None:
    sizes = replace(small(), shape=replace(small().shape, layers=12))
    shape = sizes.shape
    assert layers_that_fit(sizes, None) == shape.layers
    assert layers_that_fit(sizes, 10**9) == shape.layers
    fewer = layers_that_fit(sizes, shape.weight_bytes)
    assert 2 <= fewer < shape.layers
    assert replace(shape, layers=fewer).weight_bytes < shape.weight_bytes
    with pytest.raises(HybridError, match="two layers of small do not fit this GPU"):
        layers_that_fit(sizes, replace(shape, layers=2).weight_bytes)


@pytest.fixture
def _no_warnings_of_kernels() -> Iterator[None]:
    """PyTorch says on a CPU which CUDA kernels it would not use."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_no_warnings_of_kernels")
@given(
    st.sampled_from([(4, 2), (3, 3), (6, 2), (4, 1)]), st.integers(1, 40), st.integers(0, 40), st.sampled_from([8, 16])
)
@settings(deadline=None, max_examples=25)
def test_a_head_of_each_group_at_a_time(heads: tuple[int, int], new: int, before: int, d: int) -> None:
    """Where no flash kernel is, as on a CPU, the path for CUDA gives what the one for CPUs does."""
    q, k, v = (
        torch.randn((1, h, n, d), generator=torch.Generator().manual_seed(new + before))
        for h, n in ((heads[0], new), (heads[1], before + new), (heads[1], before + new))
    )
    ours = attention._cuda(q, k, v, d**-0.5)
    torch.testing.assert_close(ours, attention.causal_attention(q, k, v, d**-0.5), rtol=1e-4, atol=1e-5)
