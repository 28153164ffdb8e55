"""``prefillsim validate --engine hybrid`` with an engine without a model, on a clock that only moves where it works."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.io import save_cost_model
from costmodels.linear import LinearCost
from costmodels.profile import write_profile
from experiments.benches import prefilling
from experiments.commands.options import collect, settle_on_one_run
from experiments.hybrids import hybrid_options_of
from experiments.validations import Protocol, validate_here
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.replay import replay
from gpu_runner.settings import Settings
from gpu_runner.validate.sections import Section
from gpu_runner.validate.tolerances import Tolerances
from policies.units import MS
from sim.limits import Limits
from sim.memory import Memory
from tests.experiments.conftest import Cli
from tests.gpu_runner.hybrid_host import FakeHybrid

COST = LinearCost(name="guess", step=2 * MS, per_token=100_000, prefill=1 * MS)
LONGEST = 200
WORKLOAD = (
    "post-recommendation:users=4,requests_per_user=5,profile_mean=90,profile_std=20,clip=60-140,post_tokens=20,rate=50"
)
ONE_RATE = Protocol((0.7,), 3)

Machine = Callable[[int, int], float]
"""From cached and new tokens to how many times as long as the cost model says a step takes."""


class StartedHybrid(FakeHybrid):
    """The fake engine with all that the command asks of a real one."""

    machine: Machine = staticmethod(lambda hit, new: 1.0)
    runs: str | None = None
    """The policy that it runs, if not the one it was given."""

    def __init__(self, options: HybridOptions, given: Settings) -> None:
        self.capacity = 10**3 if options.blocks is None else options.blocks
        super().__init__(
            dataclasses.replace(given, policy=self.runs or given.policy),
            blocks=self.capacity,
            size=options.block_size,
            duration=lambda hit, new: round(
                type(self).machine(hit, new) * COST.step_ns(0, 0, 0, 1, new, new * hit + new * (new + 1) // 2)
            ),
            max_model_len=options.max_model_len or LONGEST,
        )

    @property
    def simulated(self) -> tuple[Limits, Memory]:
        suffix = "discard" if self.scheduler.settings.discard else "keep"
        memory = Memory(regime="store", blocks=self.capacity, block_size=self.runner.block_size, suffix=suffix)  # type: ignore[arg-type]
        return Limits(max_num_seqs=1, max_model_len=self.max_model_len), memory

    def reset_prefix_cache(self) -> None:
        assert not self.busy
        self.runner.store.stored.clear()

    def warm_up(self) -> None:
        pass

    def __enter__(self) -> StartedHybrid:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def engine() -> Iterator[type[StartedHybrid]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("experiments.hybrids.open_hybrid", StartedHybrid)
        patched.setattr("experiments.benches.replay", lambda trace, host: replay(trace, host, clock=host.virtual))
        patched.setattr(StartedHybrid, "machine", StartedHybrid.machine)
        patched.setattr(StartedHybrid, "runs", None)
        yield StartedHybrid


@pytest.fixture(scope="module")
def believed(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    save_cost_model(COST, path)
    return str(path)


def validated(
    cost_model: str,
    protocol: Protocol = ONE_RATE,
    machine: Machine | None = None,
    workload: str = WORKLOAD,
    **given: Any,
) -> list[Section]:
    """Return the sections of a validation; ``given`` as to :func:`collect`."""
    if machine is not None:
        StartedHybrid.machine = staticmethod(machine)  # type: ignore[assignment]
    options = {"policy": ["prefillonly"], "workload": workload, "cost_model": cost_model, "kv_blocks": 20, **given}
    draft = collect(None, None, name="v", **options)
    settle_on_one_run(draft)
    started = hybrid_options_of(draft, "somewhere", {}, None)
    return list(validate_here(draft, started, None, protocol, Tolerances(), Path("nowhere")))


def errors(section: Section, name: str = "figures") -> dict[str, float]:
    return {row["figure"]: row["error"] for row in section.data[name] if row["error"] is not None}


@given(
    policy=st.sampled_from(["fcfs+full", "srjf-static+full", "prefillonly", "lpm+full"]),
    suffix=st.sampled_from(["keep", "discard"]),
    blocks=st.sampled_from([0, 9, 25, 100]),
    slow=st.sampled_from([0.8, 1.0, 1.5]),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=8)
def test_what_differs_by_nothing_is_off_by_nothing(
    believed: str, policy: str, suffix: str, blocks: int, slow: float, seed: int
) -> None:
    """Whatever the machine's speed: it is measured on other requests, and the clock knows no chance."""
    schedule, knee, at_once, at_rate = validated(
        believed, machine=lambda hit, new: slow, policy=[policy], suffix=suffix, kv_blocks=blocks, seed=seed
    )
    assert schedule.passed
    assert [run["steps"] for run in schedule.data["runs"]] == [20] * 6
    assert all(run["other_hits"] == 0 for run in schedule.data["runs"])
    assert blocks == 0 or suffix == "discard" or sum(run["cached_tokens"] for run in schedule.data["runs"]) > 0
    for section in (knee, at_once, at_rate):
        assert section.passed
    for section in (at_once, at_rate):
        assert max(map(abs, errors(section).values())) < 1e-4
        np.testing.assert_allclose(section.data["speeds"], slow, rtol=1e-4)
        assert section.data["repeats"] == 3
    assert errors(at_once, "as_profiled")["jct_mean"] == pytest.approx(1 / slow - 1, rel=1e-3, abs=1e-6)
    assert {"jct_mean", "jct_p50", "jct_p99", "goodput"} <= set(errors(at_once))


def test_a_wrong_cost_model_is_a_miss_end_to_end_and_not_in_the_schedule(believed: str) -> None:
    """Long uncached prompts take five times what is believed; the reference requests' are mostly cached."""
    schedule, *ends = validated(
        believed, machine=lambda hit, new: 1.0 if hit else 5.0, policy=["fcfs+full"], kv_blocks=0
    )
    assert schedule.passed
    assert all(section.passed for section in ends), "without a store all requests are of one kind"
    schedule, _, at_once, _ = validated(
        believed, machine=lambda hit, new: 1.0 if hit else 5.0, policy=["fcfs+full"], kv_blocks=20
    )
    assert schedule.passed
    assert not at_once.passed
    assert abs(errors(at_once)["jct_mean"]) > 0.1
    assert any("mean latency" in miss for miss in at_once.misses), at_once.misses


def test_another_order_is_a_miss_of_the_schedule(believed: str, engine: type[StartedHybrid]) -> None:
    engine.runs = "srjf-static+full"
    schedule = validated(believed, policy=["fcfs+full"])[0]
    assert not schedule.passed
    assert "the batches differ" in schedule.verbatim
    assert schedule.misses[0].startswith("L2 fcfs+full: all at once, repeat 1 differs in ")


def test_where_all_arrive_at_once_there_is_no_rate_to_scale(believed: str) -> None:
    for sections in (
        validated(believed, workload=f"{WORKLOAD},arrivals=all-at-once"),
        validated(believed, Protocol.parse("none", 3)),
    ):
        assert [(s.level, s.title) for s in sections] == [
            ("L2", "prefillonly"),
            ("L3", "knee of prefillonly"),
            ("L3", "prefillonly, all at once"),
        ]


@given(longest=st.integers(4, 5000))
@settings(deadline=None, max_examples=30)
def test_reference_prompts_fit_and_share_their_beginnings(longest: int) -> None:
    trace = prefilling(longest)
    assert trace.prompt_tokens.max() + 1 <= longest
    assert trace.segments is not None
    first, own = zip(*(trace.segments.of(i) for i in range(len(trace))), strict=True)
    assert len(set(first)) == 3
    assert len(set(own)) == len(trace)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--engine", "hybird"], "unknown engine 'hybird'; did you mean hybrid?"),
        (["--engine", "vllm", "--suffix", "discard"], "--suffix goes with --engine hybrid"),
        (["--engine", "hybrid", "--promise", "3"], "the hybrid engine answers with one token"),
        (["--engine", "hybrid", "--suffix", "offload"], "give --suffix keep or discard"),
        (["--engine", "hybrid", "--max-num-seqs", "4"], "--max-num-seqs is vLLM's"),
        (["--engine", "hybrid", "--max-num-batched-tokens", "4"], "--max-num-batched-tokens is vLLM's"),
        (["--engine", "hybrid", "--pipeline-depth", "2"], "the hybrid engine has one step in flight"),
        (["--engine", "hybrid", "--workload", "chat"], "answers with one token, but a request of chat"),
        (["--engine", "hybrid", "--max-model-len", "30"], "was served under fcfs+full; the first: 126 prompt"),
    ],
)
def test_what_does_not_apply_is_refused(cli: Cli, believed: str, more: list[str], told: str) -> None:
    given = ["--workload", WORKLOAD] if "--workload" not in more else []
    result = cli("validate", "--model", "somewhere", "--cost-model", believed, "-p", "fcfs+full", *given, *more)
    assert result.code == 2
    assert told in result.err


def test_a_recorded_run_has_no_engine_to_choose(cli: Cli) -> None:
    for more in (["--engine", "hybrid"], ["--suffix", "keep"]):
        result = cli("validate", "--recorded", "somewhere", *more)
        assert result.code == 2
        assert f"{more[0]} goes with --model" in result.err


@pytest.mark.parametrize(
    ("measured", "asked", "told"),
    [
        ("vllm", "hybrid", "was measured on engine vllm; give one that `prefillsim profile --engine hybrid` makes"),
        ("hybrid", "vllm", "was measured on engine hybrid; give one that `prefillsim profile`, and without"),
    ],
)
def test_a_profile_of_another_engine_is_refused(cli: Cli, tmp_path: Path, measured: str, asked: str, told: str) -> None:
    setting = SimpleNamespace(device="cpu", model="m", dtype="float32", tensor_parallel=1, engine=measured)
    rows = [
        {**vars(setting), "engine_version": "1", "n_decode": 0, "decode_context": 0, "decode_context_max": 0}
        | {"n_prefill": 1, "prefill_tokens": n, "prefill_pairs": n * (n + 1) // 2, "duration_ns": n * MS, "repeat": 0}
        for n in range(1, 20)
    ]
    path = tmp_path / "p.parquet"
    write_profile(path, pd.DataFrame(rows), {"source": "made up"})
    given = ["--profile", str(path), "-p", "fcfs+full", "--workload", WORKLOAD]
    result = cli("validate", "--model", "somewhere", "--engine", asked, *given)
    assert result.code == 2
    assert told in result.err


def test_the_report_has_the_engine(cli: Cli, believed: str, tmp_path: Path, light_pictures: None) -> None:
    """One repeat of one rate: the pictures take longer than all else."""
    given = ["--cost-model", believed, "-p", "prefillonly", "--workload", f"{WORKLOAD},arrivals=all-at-once"]
    engine = ["--model", "somewhere", "--engine", "hybrid", "--suffix", "discard", "--kv-blocks", "20"]
    result = cli("validate", *engine, *given, "--repeats", "1", "--out", "o", "--json")
    assert (result.code, result.err) == (0, "")
    assert [s["level"] for s in result.json["sections"]] == ["L2", "L3", "L3"]
    assert (tmp_path / "o/report.html").exists()
