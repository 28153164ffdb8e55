from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodels.profile import FEATURES, read_profile
from gpu_runner.engine import Engine, EngineError, EngineOptions, open_engine
from gpu_runner.model import tiny_llama
from gpu_runner.profile import Plan, run_profile
from gpu_runner.profiling.bench import features, wanted
from gpu_runner.profiling.grid import Axes, Cell, preset
from gpu_runner.profiling.stepped import SteppedBench
from gpu_runner.profiling.vllm_steps import VllmSteps


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    options = EngineOptions(
        model=str(tiny_llama(tmp_path_factory.mktemp("model"), layers=2, hidden=64)),
        load_format="dummy",
        dtype="float32",
        max_num_batched_tokens=256,
        max_num_seqs=16,
        max_model_len=1024,
        num_gpu_blocks_override=300,
        block_size=32,
        enable_prefix_caching=True,
        async_scheduling=False,
    )
    with open_engine(options) as opened:
        opened.warm_up()
        yield opened


@pytest.fixture
def bench(engine: Engine) -> Iterator[SteppedBench]:
    steps = VllmSteps(engine)
    yield SteppedBench(steps, engine.vocab)
    steps.close()


CELLS = [
    Cell(1, 33, 0, 0, 0),
    Cell(12, 513, 0, 0, 0),
    Cell(0, 0, 1, 200, 0),
    Cell(0, 0, 1, 1, 512),
    Cell(5, 1, 1, 250, 0),
    Cell(12, 513, 1, 100, 512),
    Cell(12, 513, 4, 99, 0),
    Cell(12, 513, 1, 64, 32),
]


def test_every_step_runs_exactly_as_wanted_again_and_again(bench: SteppedBench) -> None:
    for cell in [*CELLS, *reversed(CELLS)]:
        assert bench.why_not(cell) is None
        sample = bench.measure(cell)
        assert sample.features == features(wanted(cell))
        assert sample.host_ns is not None
        assert 0 < sample.host_ns < sample.duration_ns


def test_blocks_are_all_given_back_and_the_scheduler_is_as_before(engine: Engine) -> None:
    usual = engine.scheduler.max_num_scheduled_tokens
    steps = VllmSteps(engine)
    bench = SteppedBench(steps, engine.vocab)
    for cell in CELLS:
        bench.measure(cell)
    steps.close()
    assert engine.scheduler.max_num_scheduled_tokens == usual
    assert "schedule" not in vars(engine.scheduler)
    assert not engine.busy
    engine.reset_prefix_cache()


def test_kv_memory_that_holds_a_cell_just_so_still_gives_exact_steps(bench: SteppedBench) -> None:
    """299 blocks: 15 decodes of 17 blocks and contexts that push one another out of the cache."""
    cells = [Cell(15, 513, 1, 200, 0), Cell(15, 513, 1, 200, 512), Cell(15, 513, 1, 90, 832)]
    for cell in cells * 3:
        assert bench.why_not(cell) is None
        assert bench.measure(cell).features == features(wanted(cell))
    assert bench.why_not(Cell(15, 609, 1, 200, 480)) == "needs more than 299 KV blocks"


def test_more_work_takes_longer(bench: SteppedBench) -> None:
    def least(cell: Cell) -> int:
        return min(bench.measure(cell).duration_ns for _ in range(9))

    assert least(Cell(0, 0, 1, 250, 0)) > least(Cell(0, 0, 1, 4, 0))


def test_a_profile_is_written_gone_on_with_and_can_be_read(bench: SteppedBench, tmp_path: Path) -> None:
    axes = Axes((0, 2, 8), (64, 400), (0, 16, 120), (0, 256))
    cells = axes.cells(32)
    out, journal = tmp_path / "p.parquet", tmp_path / "p.journal.jsonl"
    run_profile(bench, Plan.of(bench, cells, 1), out, journal, {"source": "a test"})
    outcome = run_profile(bench, Plan.of(bench, cells, 2), out, journal, {"source": "a test"})
    found = read_profile(out)
    assert not outcome.skipped
    assert set(map(tuple, found.frame[list(FEATURES)].to_numpy().tolist())) == {features(wanted(c)) for c in cells}
    assert found.setting["engine"] == "vllm"
    assert found.provenance["kv_blocks"] == 300
    assert found.provenance["block_size"] == 32
    json.dumps(found.provenance)


def test_a_named_grid_fits(bench: SteppedBench) -> None:
    cells = preset("small", bench.capacity).cells(32)
    assert sum(bench.why_not(c) is None for c in cells) > len(cells) / 2


def test_what_cannot_be_measured_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.config.scheduler_config, "async_scheduling", True)
    with pytest.raises(EngineError, match="async_scheduling=False"):
        VllmSteps(engine)
    monkeypatch.undo()
    monkeypatch.setattr(engine.config.cache_config, "enable_prefix_caching", False)
    with pytest.raises(EngineError, match="enable_prefix_caching=True"):
        VllmSteps(engine)
