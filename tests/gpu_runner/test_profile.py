from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.linear import LinearCost
from costmodels.linear_fit import LinearEstimator
from costmodels.profile import FEATURES, Profile, ProfileError, read_profile
from gpu_runner.profile import CHECKED, Plan, ProfileStopped, run_profile
from gpu_runner.profiling.bench import CellError, features, wanted
from gpu_runner.profiling.grid import GRIDS, Axes, Cell, preset
from gpu_runner.profiling.stepped import AHEAD, SteppedBench
from tests.gpu_runner.fake_steps import CAPACITY, FakeSteps, noisy

AXES = Axes((0, 1, 8, 24), (64, 700), (0, 16, 100, 300), (0, 512))

ABOUT = {"source": "a test"}


def bench_of(engine: FakeSteps, metered: bool = False) -> SteppedBench:
    return SteppedBench(engine, 1000, engine if metered else None, clock=engine.clock)


def profile(folder: Path, engine: FakeSteps, *, axes: Axes = AXES, repeats: int = 3, **options: Any) -> Profile:
    bench = bench_of(engine, options.pop("metered", False))
    plan = Plan.of(bench, axes.cells(engine.capacity.block_size), repeats)
    run_profile(bench, plan, folder / "p.parquet", folder / "p.jsonl", ABOUT, **options)
    return read_profile(folder / "p.parquet")


@given(
    n=st.integers(0, 30),
    context=st.integers(1, 60),
    prompts=st.integers(0, 3),
    tokens=st.integers(3, 400),
    depth=st.integers(0, 60),
)
@settings(deadline=None, max_examples=60)
def test_any_step_that_fits_runs_exactly_as_wanted(n: int, context: int, prompts: int, tokens: int, depth: int) -> None:
    cell = Cell(n, context // 2 * 16 + 1 if n else 0, prompts, tokens if prompts else 0, depth * 16 if prompts else 0)
    bench = bench_of(FakeSteps())
    if not (n or prompts):
        return
    if bench.why_not(cell) is not None:
        assert n + prompts > 40 or n + tokens > 512 or depth * 16 + tokens >= 2048 or (prompts > 1 and depth)
        return
    for _ in range(2):
        assert bench.measure(cell).features == features(wanted(cell))


def test_features_are_those_of_the_simulator() -> None:
    cell = Cell(2, 33, 2, 5, 64)
    assert features(wanted(cell)) == (2, 66, 33, 2, 5, 3 * 64 + 6 + 2 * 64 + 3)


def test_decodes_are_built_once_for_all_cells_of_a_round_and_no_prompt_is_met_twice() -> None:
    engine = FakeSteps()
    bench = bench_of(engine)
    cells = [c for c in AXES.cells(16) if c[:2] == (8, 689)]
    for cell in cells * 3:
        bench.measure(cell)
    assert engine.cleared == 1
    assert engine.steps < 8 * 700 / 512 + 4 + 3 * 2 * len(cells)


def test_a_lost_prefix_cache_is_built_again() -> None:
    for at in range(2, 7):
        engine = FakeSteps(forgets=at)
        bench = bench_of(engine)
        cell = Cell(3, 161, 1, 50, 256)
        assert [bench.measure(cell).features for _ in range(3)] == [features(wanted(cell))] * 3
        assert engine.cleared == 2


def test_an_engine_that_runs_other_steps_is_found_out(tmp_path: Path) -> None:
    class Stubborn(FakeSteps):
        def step(self, budget: int) -> Any:
            ran = super().step(budget)
            return ran._replace(spans=ran.spans[:2])

    with pytest.raises(CellError, match="4 decodes at 65: the engine ran"):
        bench_of(Stubborn()).measure(Cell(4, 65, 0, 0, 0))


def test_the_known_cost_comes_back(tmp_path: Path) -> None:
    truth = LinearCost()
    found = profile(tmp_path, FakeSteps(cost=truth, noise=noisy(0, 0.02)), repeats=5)
    fitted = LinearEstimator().fit(found.frame, found.frame["duration_ns"])
    shapes = found.frame.drop_duplicates(list(FEATURES))
    true_ns = np.array([truth.step_ns(*row) for row in shapes[list(FEATURES)].to_numpy().tolist()])
    assert np.abs(fitted.predict(shapes) / true_ns - 1).max() < 0.02
    assert (found.frame["host_ns"] == found.frame["duration_ns"] // 10).all()
    assert "energy_mj" not in found.frame


def test_every_cell_has_all_its_repeats_and_exactly_its_features(tmp_path: Path) -> None:
    found = profile(tmp_path, FakeSteps(), repeats=4)
    cells = AXES.cells(16)
    counts = found.frame.groupby(list(FEATURES)).size()
    assert set(counts.index) == {features(wanted(c)) for c in cells}
    assert sorted(counts.unique()) == [4, 5]
    assert (counts == 5).sum() == CHECKED


def test_rounds_are_in_different_orders_and_groups_stay_together() -> None:
    plan = Plan.of(bench_of(FakeSteps()), AXES.cells(16), 5)
    orders = [tuple(plan.order(r)) for r in range(5)]
    assert len(set(orders)) == 5
    for order in orders:
        assert set(order) == set(plan.cells)
        groups = [c[:2] for c in order]
        changes = sum(a != b for a, b in pairwise(groups))
        assert changes == len(set(groups)) - 1
    assert orders == [tuple(Plan.of(bench_of(FakeSteps()), AXES.cells(16), 5).order(r)) for r in range(5)]


def test_a_machine_that_slows_down_is_told_and_does_not_look_like_a_feature(tmp_path: Path) -> None:
    def slower(ns: int, number: int) -> int:
        return round(ns * (1 + number / 4000))

    engine = FakeSteps(noise=slower)
    found = profile(tmp_path, engine, repeats=5)
    quality = found.provenance["quality"]
    late = 1 + engine.steps / 4000
    assert 0.1 < quality["drift"] < late - 1
    assert quality["drift_cells"] == CHECKED
    assert list(quality["rounds"]) == sorted(quality["rounds"])
    assert any("drifted" in w for w in found.warnings)
    # All cells suffer alike: each one's median is the same factor above the truth, up to a round's own length.
    shapes = found.frame[found.frame["repeat"] < 5].groupby(list(FEATURES))["duration_ns"].median()
    factor = shapes.to_numpy() / [LinearCost().step_ns(*i) for i in shapes.index]  # type: ignore[misc]
    assert factor.std() / factor.mean() < 0.05


def test_a_steady_machine_has_no_drift(tmp_path: Path) -> None:
    found = profile(tmp_path, FakeSteps(noise=noisy(1, 0.02)), repeats=5)
    assert abs(found.provenance["quality"]["drift"]) < 0.02
    assert found.provenance["quality"]["spread"] == pytest.approx(0.02, rel=0.3)
    assert not any("drifted" in w for w in found.warnings)


def test_outliers_are_kept_and_flagged(tmp_path: Path) -> None:
    def hiccup(ns: int, number: int) -> int:
        return ns * 9 if number % 19 == 0 else ns

    found = profile(tmp_path, FakeSteps(noise=hiccup), repeats=5)
    (tmp_path / "clean").mkdir()
    clean = profile(tmp_path / "clean", FakeSteps(), repeats=5)
    slow = found.frame["duration_ns"] > 3 * clean.frame["duration_ns"]
    assert slow.sum() > 5
    assert (found.outlier == slow.to_numpy()).all()
    assert found.provenance["quality"]["far_off"] == slow.sum()


def test_energy_is_power_times_duration(tmp_path: Path) -> None:
    engine = FakeSteps(watts=250, cost=LinearCost(step=20_000_000))  # a second has more steps than are queued ahead
    found = profile(tmp_path, engine, axes=replace(AXES, decodes=(0, 8)), metered=True)
    assert engine.steps > AHEAD * len(replace(AXES, decodes=(0, 8)).cells(16))
    expected = found.frame["duration_ns"] * 250 / 1e6
    assert (found.frame["energy_mj"] - expected).abs().max() <= 0.01 * expected.max() + 1


class Interrupting(FakeSteps):
    stop_at: int = 0

    def step(self, budget: int) -> Any:
        if self.steps == self.stop_at:
            raise KeyboardInterrupt
        return super().step(budget)


def test_what_was_measured_before_an_interrupt_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    engine = Interrupting()
    engine.stop_at = 200
    with pytest.raises(ProfileStopped, match=r"p\.parquet has \d+ steps, and every step is in .*--resume"):
        profile(tmp_path, engine)
    kept = read_profile(tmp_path / "p.parquet")
    again = FakeSteps()
    whole = profile(tmp_path, again)
    assert len(whole) == 3 * len(AXES.cells(16)) + CHECKED
    assert whole.frame["duration_ns"].tolist()[: len(kept)] == kept.frame["duration_ns"].tolist()
    ahead = FakeSteps()
    profile(tmp_path, ahead)
    assert ahead.steps == 0


def test_an_interrupt_before_the_first_round_keeps_the_journal(tmp_path: Path) -> None:
    engine = Interrupting()
    engine.stop_at = 3
    with pytest.raises(ProfileStopped, match="before there was a table"):
        profile(tmp_path, engine)
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 1


def test_more_repeats_and_other_cells_can_be_added_later(tmp_path: Path) -> None:
    profile(tmp_path, FakeSteps(), axes=replace(AXES, decodes=(0, 1)), repeats=1)
    found = profile(tmp_path, FakeSteps(), repeats=2)
    counts = found.frame.groupby(list(FEATURES)).size()
    assert set(counts.index) == {features(wanted(c)) for c in AXES.cells(16)}
    assert counts.min() == 2


def test_a_journal_cut_off_anywhere_in_its_last_line_is_gone_on_with(tmp_path: Path) -> None:
    axes = replace(AXES, decodes=(0, 1), decode_contexts=(64,))
    whole = profile(tmp_path, FakeSteps(), axes=axes, repeats=1)
    journal = tmp_path / "p.jsonl"
    written = journal.read_bytes()
    for cut in (1, 2, 3, *range(4, 60, 7)):
        journal.write_bytes(written[:-cut])
        again = profile(tmp_path, FakeSteps(), axes=axes, repeats=1)
        assert set(map(tuple, again.frame[list(FEATURES)].to_numpy())) == set(
            map(tuple, whole.frame[list(FEATURES)].to_numpy())
        )
        for line in journal.read_text().splitlines():
            json.loads(line)


def test_a_journal_of_other_conditions_is_refused_with_what_differs(tmp_path: Path) -> None:
    profile(tmp_path, FakeSteps(), repeats=1)
    before = (tmp_path / "p.jsonl").read_bytes()
    with pytest.raises(ProfileError, match=r"other conditions.*kv_blocks: 4000 -> 3000"):
        profile(tmp_path, FakeSteps(key={"kv_blocks": 3000}), repeats=1)
    assert (tmp_path / "p.jsonl").read_bytes() == before


@pytest.mark.parametrize(("text", "says"), [("hello\n", "no journal"), ("{}\n", "no journal"), ("[1]\n", "no journal")])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(ProfileError, match=says):
        profile(tmp_path, FakeSteps())
    assert (tmp_path / "p.jsonl").read_text() == text


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    profile(tmp_path, FakeSteps(), repeats=1)
    lines = (tmp_path / "p.jsonl").read_text().splitlines()
    lines[4] = lines[4][:30]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ProfileError, match="line 5 is damaged"):
        profile(tmp_path, FakeSteps(), repeats=1)


def test_cells_that_do_not_fit_are_listed_with_the_reason(tmp_path: Path) -> None:
    small = replace(CAPACITY, kv_blocks=300, max_num_seqs=20)
    found = profile(tmp_path, FakeSteps(capacity=small))
    skipped = found.provenance["skipped"]
    assert skipped["24 decodes at 49"].endswith("20 requests at once (max_num_seqs)")
    assert skipped["8 decodes at 689"].endswith("299 KV blocks")
    assert len(skipped) + found.frame.groupby(list(FEATURES)).ngroups == len(AXES.cells(16))


def test_no_cell_fits() -> None:
    with pytest.raises(ProfileError, match="no cell of the grid fits"):
        Plan.of(bench_of(FakeSteps()), [Cell(4000, 1, 0, 0, 0)])


def test_the_time_limit_holds_and_the_rest_is_told(tmp_path: Path) -> None:
    whole, engine = FakeSteps(), FakeSteps()
    profile(tmp_path, whole)
    plan = Plan.of(bench_of(engine), AXES.cells(16), 3)
    outcome = run_profile(
        bench_of(engine),
        plan,
        tmp_path / "half.parquet",
        tmp_path / "half.jsonl",
        ABOUT,
        max_s=whole.clock() / 2,
        clock=engine.clock,
    )
    assert 0 < outcome.incomplete <= len(plan.cells)
    assert engine.clock() < 0.75 * whole.clock()


def test_progress_counts_every_visit(tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {}

    def progress(total: int, label: str) -> Any:
        seen[label] = [total, 0]

        def tick(n: int) -> None:
            seen[label][1] += n

        return tick

    profile(tmp_path, FakeSteps(), progress=progress)
    assert seen == {"steps": [4 * len(AXES.cells(16))] * 2, "drift check": [CHECKED] * 2}


@pytest.mark.parametrize("name", GRIDS)
@given(
    st.builds(
        lambda seqs, length, tokens, blocks, size: replace(
            CAPACITY,
            max_num_seqs=seqs,
            max_model_len=length,
            max_step_tokens=max(tokens, seqs),
            kv_blocks=blocks,
            block_size=size,
        ),
        st.integers(1, 1024),
        st.integers(64, 200_000),
        st.integers(64, 32_768),
        st.integers(64, 100_000),
        st.sampled_from([16, 32, 128]),
    )
)
@settings(deadline=None, max_examples=30)
def test_named_grids_have_steps_of_every_kind_on_any_engine(name: str, capacity: Any) -> None:
    cells = preset(name, capacity).cells(capacity.block_size)
    assert len(cells) == len(set(cells))
    bench = bench_of(FakeSteps(capacity=capacity))
    fitting = [c for c in cells if bench.why_not(c) is None]
    assert any(c.n_decode and not c.prompts for c in fitting)
    assert any(c.prompts and not c.n_decode for c in fitting)
    if capacity.max_num_seqs > 1:
        assert any(c.prompts and c.n_decode for c in fitting)


def test_an_unknown_grid_names_the_nearest() -> None:
    with pytest.raises(ProfileError, match="did you mean small"):
        preset("smal", CAPACITY)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decodes": ()}, "--decodes is empty"),
        ({"decode_contexts": (0,)}, "--decode-contexts has 0; it must be at least 1"),
        ({"prefill_tokens": (-1,)}, "--prefill-tokens has -1"),
        ({"prompts": (0,)}, "--prompts has 0"),
        ({"decodes": (0,), "prefill_tokens": (0,)}, "no step has any work"),
    ],
)
def test_axes_that_no_step_can_have(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        replace(AXES, **changes)
