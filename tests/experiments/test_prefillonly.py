"""PrefillOnly's figures: Figure 5 exactly, rates sustained at equal latency on known curves, and a small grid."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.io import load_cost_model
from costmodels.prefill import PrefillCost
from experiments.prefillonly.explain import credit_variants, post_variants
from experiments.prefillonly.grid import CREDIT, LONGEST, POST, SHUFFLED, Point, cells_of, rate_of
from experiments.prefillonly.regenerate import Regenerated, regenerate
from experiments.prefillonly.reproduction import TOLERANCE, exact_rows, peak_throughput, readings
from experiments.prefillonly.sustained import Sustained, crossing, log_interval, qps_ratio, sustained
from experiments.prefillonly.systems import ORDERINGS, SETUPS, UNLINKED, WORKLOADS, deploy, deployments, fits
from experiments.prefillonly.table2 import SYSTEMS, paper_cells
from experiments.prefillonly.toy import PAPER, serve_toy, toy_trace
from experiments.run import simulate_cell
from policies import parse_policy
from sim.records import FINISHED, REJECTED
from sim.stats import t_interval
from tests.experiments.conftest import Cli
from tests.experiments.drawing import draw_lightly, draw_short_table
from traces.synthetic import generate

RATES = np.array([0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_figure_5_is_the_papers(ordering: str) -> None:
    served = serve_toy(ordering)
    assert (served.order, served.hits) == PAPER[ordering]
    # One at a time, with no pause.
    assert served.rows[0]["start_s"] == 0
    assert all(a["end_s"] == b["start_s"] for a, b in zip(served.rows, served.rows[1:], strict=False))


def test_the_toy_is_the_papers() -> None:
    trace = toy_trace()
    assert trace.id is not None
    assert trace.segments is not None
    length = dict(zip(trace.id.tolist(), trace.prompt_tokens.tolist(), strict=True))
    assert length["A"] < length["C"] < length["B"] < length["D"]
    prefix = {name: trace.segments.of(i)[0] for i, name in enumerate(trace.id.tolist())}
    assert prefix["A"] == prefix["D"]
    assert prefix["B"] == prefix["C"]
    assert prefix["A"] != prefix["B"]


@given(st.floats(0.5, 4), st.floats(0.2, 3), st.floats(0.01, 100), st.sampled_from([2, 3, 4]))
@settings(deadline=None)
def test_a_system_that_is_k_times_as_fast_sustains_k_times_the_rate(k: float, power: float, a: float, at: int) -> None:
    """Exactly, for curves that are straight where both axes are logarithmic, whatever a seed's factor."""
    ours = np.array([[a], [2 * a], [3 * a]]) * RATES**power
    theirs = np.array([[a], [2 * a], [3 * a]]) * (k * RATES) ** power
    found, bound = qps_ratio(RATES, ours, theirs, at)
    sustains = RATES[at] / k
    if not RATES[0] * 1.001 < sustains < RATES[-1] / 1.001:
        return
    assert bound == ""
    assert found.mean == pytest.approx(k)
    assert found.lo == pytest.approx(k)
    assert found.hi == pytest.approx(k)


def test_a_baseline_that_is_always_slower_or_always_faster_gives_a_bound() -> None:
    ours = np.tile(RATES + 1.0, (3, 1))
    found, bound = qps_ratio(RATES, ours, 10 * ours, 3)
    assert (found.mean, bound, found.lo) == (8.0, ">", None)
    found, bound = qps_ratio(RATES, ours, ours / 10, 3)
    assert (found.mean, bound, found.hi) == (0.25, "<", None)


def test_a_rate_is_sustained_up_to_the_first_at_which_the_curve_exceeds_the_level() -> None:
    qps = np.array([1.0, 2.0, 4.0])
    assert sustained(qps, np.array([1.0, 4.0, 2.0]), 2.0) == Sustained(pytest.approx(2**0.5), "")
    assert sustained(qps, np.array([1.0, 2.0, 2.0]), 2.0) == Sustained(4.0, ">")
    assert sustained(qps, np.array([3.0, 1.0, 1.0]), 2.0) == Sustained(1.0, "<")
    assert crossing(qps, np.array([1.0, 2.0, 8.0]), np.array([2.0, 2.0, 2.0])) == Sustained(2.0, "")


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=12))
@settings(deadline=None)
def test_the_interval_of_a_geometric_mean_is_students(logs: list[float]) -> None:
    """The jackknife's pseudo-values of a mean are the values themselves."""
    values = np.array(logs)
    found, bound = log_interval(values, lambda kept: Sustained(float(np.exp(kept.mean())), ""))
    exact = t_interval(logs)
    assert bound == ""
    assert np.log([found.mean, found.lo, found.hi]) == pytest.approx(list(exact), abs=1e-7)


def test_systems_run_where_table_2_is_ticked() -> None:
    setups = {s.gpu: s for s in SETUPS.values()}
    for cell in paper_cells():
        ticks = tuple(fits(setups[cell.gpu], cell.system, longest) for longest in WORKLOADS.values())
        assert ticks == (cell.wl1, cell.wl2), cell
    assert {s: len(deployments(setup, LONGEST[POST])) for s, setup in SETUPS.items()} == {
        "l4": 5,
        "a100": 4,
        "h100": 4,
        "h100-nvlink": 4,
    }


def test_a_chunk_has_one_size_in_memory_cost_and_policy() -> None:
    for setup in SETUPS.values():
        for system, deployment in deployments(setup, LONGEST[POST]).items():
            chunked = "chunk=2048" in deployment.cost
            assert chunked == (deployment.policy == "fcfs+token-budget:budget=2048")
            assert (system == "prefillonly") == (deployment.memory.regime == "store")
            assert deployment.memory.prefix_cache
            assert deployment.replicas == (1 if system in ("tensor", "pipeline") else 2)
            parse_policy(deployment.policy)


def test_a_card_that_only_its_link_tells_from_another_is_that_card_alone() -> None:
    for linked, other in UNLINKED.items():
        for llm in {s.llm for s in SETUPS.values()}:
            for chunk in ("", ",chunk=2048"):
                a, b = (load_cost_model(f"prefill:llm={llm},gpu={gpu}{chunk}") for gpu in (linked, other))
                assert isinstance(a, PrefillCost)
                assert dataclasses.replace(a, name=b.name) == b
    for workload in (POST, CREDIT):
        one, two = (deployments(SETUPS[name], LONGEST[workload]) for name in ("h100", "h100-nvlink"))
        assert one["prefillonly"] == two["prefillonly"]
        assert one["tensor"] != two["tensor"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_cell_is_its_deployment(system: str) -> None:
    deployment = deploy(SETUPS["l4"], system, LONGEST[POST])
    (cell,) = cells_of(deployment, POST, [3], {"system": system}, rate=20.0, limit=120)
    assert cell.memory == deployment.memory
    assert cell.cost == deployment.cost_model()
    trace, tables, result = simulate_cell(cell)
    assert trace == generate(POST, 3, 120, 20.0)
    run = deployment.run(trace)
    for name, column in run.requests.items():
        assert np.array_equal(column, tables.requests[name], equal_nan=name.startswith("tpot")), name
    assert result.summary is not None
    assert result.summary["rejected"] == 0


def test_longer_prompts_than_the_profile_run_was_made_for_are_rejected() -> None:
    trace = generate(f"{POST}:clip=none", 0, 400)
    assert trace.prompt_tokens.max() > LONGEST[POST]
    for system, deployment in deployments(SETUPS["a100"], LONGEST[POST]).items():
        outcome = deployment.run(trace).requests["outcome"]
        assert np.array_equal(outcome == REJECTED, trace.prompt_tokens > LONGEST[POST]), system
        assert np.array_equal(outcome == FINISHED, trace.prompt_tokens <= LONGEST[POST]), system


def test_readings_are_of_systems_that_run_and_no_run_is_faster_than_the_data_sheets() -> None:
    for reading in readings():
        setup = SETUPS[reading.point.setup]
        longest = WORKLOADS[reading.point.workload]
        assert reading.point.system in deployments(setup, longest)
        assert 0 < reading.lo <= reading.hi
    point = Point("l4", CREDIT, "tensor")
    trace = generate(f"{CREDIT}:arrivals=all-at-once", 1)
    run = deploy(SETUPS["l4"], "tensor", LONGEST[CREDIT]).run(trace)
    ours = len(trace) * 1e9 / float(run.requests["finished_ns"].max())
    assert 0.3 < ours / peak_throughput(point, 1) < 1


def test_what_has_no_seeds_agrees_but_for_three_that_are_explained() -> None:
    rows = exact_rows()
    assert TOLERANCE == 0.2
    different = [row for row in rows if row["verdict"] == "differs"]
    assert len(different) == 3
    assert all(row["why"] for row in different)


def test_variants_change_what_they_say() -> None:
    post = post_variants("a100")
    ours, whole = post["PrefillOnly"], post["PrefillOnly, its store as long as the longest prompt"]
    assert (ours.memory.blocks or 0) * 16 < LONGEST[POST] <= (whole.memory.blocks or 0) * 16
    credit = credit_variants("h100-nvlink")
    assert "h100-sxm" in credit["PrefillOnly on SXM modules"].cost
    one = credit["pipeline parallel, a pool for one prompt"].memory.blocks or 0
    # A pool never gives out one of its blocks.
    assert 60_000 <= (one - 1) * 16 < 2 * 40_000


def test_rates_are_rounded() -> None:
    assert rate_of(10.8546, 0.125) == 1.36
    assert rate_of(0.072857, 4.0) == 0.291


SMALL = ("h100", "h100-nvlink")

FEW = 30


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Regenerated]:
    """Everything, but with few of everything."""
    folder = tmp_path_factory.mktemp("figures") / "out"
    with pytest.MonkeyPatch.context() as patch:
        draw_lightly(patch)
        patch.setattr("experiments.prefillonly.pictures.draw_table", draw_short_table)
        run = regenerate(
            folder, seeds=range(2), setups=SMALL, multiples=(0.5, 1.0, 2.0), limit=FEW, figure11=False, jobs=1
        )
    return folder, run


def test_everything_is_written(made: tuple[Path, Regenerated]) -> None:
    folder, run = made
    stems = {path.stem for path in run.files}
    assert stems >= {"table2", *(f"figure{n}" for n in range(3, 11)), "ratios", "reproduction", "variants", "low-load"}
    assert all(path.stat().st_size for path in run.files)
    text = (folder / "reproduction.md").read_text()
    assert all(len(line.split("|")) == len(text.splitlines()[k].split("|")) for k, line in _table_lines(text))


def _table_lines(text: str) -> list[tuple[int, str]]:
    """Return each table's lines with the number of its header's line."""
    found, header = [], -1
    for k, line in enumerate(text.splitlines()):
        if not line.startswith("|"):
            header = -1
            continue
        header = k if header < 0 else header
        found.append((header, line))
    return found


def test_ratios_are_there_for_every_baseline_that_fits(made: tuple[Path, Regenerated]) -> None:
    _, run = made
    for setup in SMALL:
        for workload in (POST, CREDIT, SHUFFLED):
            baselines = set(deployments(SETUPS[setup], LONGEST[workload])) - {"prefillonly"}
            own = [r for r in run.ratios if (r["setup"], r["workload"]) == (setup, workload)]
            assert {r["system"] for r in own} == baselines
            # At equal mean and P99 latency, at three levels, and of throughputs.
            assert len(own) == 7 * len(baselines)
    assert all(r["bound"] or r["lo"] <= r["ratio"] <= r["hi"] for r in run.ratios)
    assert all(row["verdict"] in ("agrees", "differs") for row in run.numbers)


def test_figures_show_what_the_runs_say(made: tuple[Path, Regenerated]) -> None:
    """A point of Figure 6 is the mean over seeds of a run's own mean."""
    folder, _ = made
    with (folder / "figure6.csv").open() as file:
        row = next(r for r in csv.DictReader(file) if r["setup"] == "h100" and r["system"] == "chunked")
    deployment = deploy(SETUPS["h100"], "chunked", LONGEST[POST])
    latencies = [
        deployment.run(generate(POST, seed, FEW, float(row["qps"]))).requests["jct_ns"].mean() / 1e9 for seed in (0, 1)
    ]
    assert float(row["mean"]) == pytest.approx(np.mean(latencies))


@pytest.mark.parametrize("paper", ["sloweave", "prefillonly", "prefillonly-more"])
def test_without_enough_seeds_there_are_no_intervals(cli: Cli, paper: str) -> None:
    done = cli("figures", paper, "--seeds", "1")
    assert done.code == 2
    assert "--seeds is 1, but intervals need at least 2 seeds" in done.err


@pytest.mark.parametrize("which", ["sloweave", "prefillonly"])
def test_a_folder_with_something_in_it_is_refused_before_anything_is_run(cli: Cli, tmp_path: Path, which: str) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").touch()
    done = cli("figures", which, "--out", "used")
    assert done.code == 2
    assert "--out used exists and is not empty; give another folder" in done.err
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["thesis.txt"]


def test_seeds_without_end_are_refused(cli: Cli) -> None:
    done = cli("figures", "prefillonly", "--seeds", "100001")
    assert done.code == 2
    assert "--seeds is 100001" in done.err
