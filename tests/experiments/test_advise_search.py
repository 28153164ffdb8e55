"""The parts that an advice is made of: counting replicas, choosing among finalists, and command lines for vLLM."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.io import load_cost_model
from experiments.advice.candidates import (
    COVERAGE,
    DEFAULT,
    EFFORT,
    FILL,
    NONE,
    ORDER,
    STOCK,
    Candidate,
    first_round,
    is_fitted,
    second_round,
)
from experiments.advice.choice import ALPHA, NEGLIGIBLE, choose
from experiments.advice.flags import start_of
from experiments.advice.replicas import IDLE, roughly, surely
from experiments.advice.trace import Task, task_of
from experiments.advice.tuning import FINALISTS, Tuned, finalists_of
from experiments.capacity.search import Verdict
from experiments.draft import Draft
from gpu_runner.settings import Settings
from policies.spec import parse_policy
from sim.stats import paired

quietly = settings(deadline=None, max_examples=40)


def once(function: Callable[[int], Any]) -> tuple[Callable[[int], Any], list[int]]:
    asked: list[int] = []

    def counted(n: int) -> Any:
        assert n not in asked
        asked.append(n)
        return function(n)

    return counted, asked


@quietly
@given(st.integers(1, 64), st.integers(1, 64))
def test_doubling_and_bisection_find_the_least_number(needed: int, start: int) -> None:
    attains, asked = once(lambda n: min(1.0, 0.9 * (n / needed)))
    found = roughly(attains, 0.9, start, 64)
    assert found.reached
    assert found.replicas == needed
    assert len(asked) <= 13


def test_what_no_number_reaches_is_told_after_few_looks() -> None:
    """Attainment that rises to 40 % by twelve replicas and not beyond: twelve are as good as any."""
    attains, asked = once(lambda n: 0.4 * min(n, 12) / 12)
    found = roughly(attains, 0.9, 3, 4096)
    assert not found.reached
    assert found.replicas == 12
    assert max(asked) <= 12 * IDLE
    assert roughly(lambda _: 0.0, 0.9, 64, 64).replicas == 64


@quietly
@given(st.integers(1, 40), st.integers(0, 4), st.integers(1, 64), st.integers(1, 40))
def test_the_interval_holds_the_truth_however_few_the_visits(
    needed: int, unclear: int, start: int, visits: int
) -> None:
    """Below ``needed`` all break; from ``needed + unclear`` on all hold; between, nothing tells."""

    def truth(n: int) -> Verdict:
        return Verdict.BREAKS if n < needed else Verdict.HOLDS if n >= needed + unclear else Verdict.UNCLEAR

    judge, asked = once(truth)
    span = surely(judge, start, 64, visits)
    assert len(asked) <= visits
    assert set(span.verdicts) == set(asked)
    assert not span.uneven
    if span.holds is not None:
        assert span.holds >= needed + unclear
    if span.breaks is not None:
        assert span.breaks < needed
    if visits == 40:
        assert span.holds == needed + unclear
        assert span.breaks == (needed - 1 or None)


def test_a_number_that_holds_below_one_that_breaks_is_not_the_answer() -> None:
    judge = {4: Verdict.BREAKS, 3: Verdict.HOLDS, 5: Verdict.HOLDS, 6: Verdict.HOLDS}.__getitem__
    assert surely(judge, 4, 64, 8).holds == 5


def runs_of(values: list[float]) -> list[dict[str, float | int | None]]:
    return [{"slo_attainment": v, "goodput": 10 * v} for v in values]


@quietly
@given(
    st.lists(st.tuples(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(0, 9)), min_size=1, max_size=5)
)
def test_nobody_is_surely_better_than_the_recommended_by_what_is_worth_it(
    drawn: list[tuple[list[float], int]],
) -> None:
    finalists = [Candidate(f"fcfs+fixed:chunk={k + 1}", "chunk", effort) for k, (_, effort) in enumerate(drawn)]
    runs = {c.policy: runs_of(values) for c, (values, _) in zip(finalists, drawn, strict=True)}
    choice = choose(finalists, runs, dict.fromkeys(runs, Verdict.HOLDS))
    means = {policy: np.mean([s["slo_attainment"] for s in own]) for policy, own in runs.items()}
    assert choice.best.attainment == pytest.approx(max(means.values()))
    assert choice.recommended in choice.tied
    for simpler in finalists:
        if simpler.effort < choice.recommended.candidate.effort:
            standing = choice.of(simpler.policy)
            assert standing is not None
            assert standing.p < ALPHA
            assert max(means.values()) - means[simpler.policy] >= NEGLIGIBLE


def test_one_that_does_not_surely_hold_is_passed_over_for_one_that_does() -> None:
    simple, other = Candidate("vllm-default", NONE, 0), Candidate("sloweave", FILL, 3)
    wild = [1.0, 0.2, 1.0, 0.9, 1.0, 1.0]
    runs = {"vllm-default": runs_of(wild), "sloweave": runs_of([0.99, 0.98, 0.99, 0.98, 0.97, 0.99])}
    verdicts = {"vllm-default": Verdict.UNCLEAR, "sloweave": Verdict.HOLDS}
    choice = choose([simple, other], runs, verdicts)
    assert choice.all_tied
    assert choice.recommended.policy == "sloweave"
    assert choose([simple, other], runs, dict.fromkeys(runs, Verdict.HOLDS)).recommended.policy == "vllm-default"


def test_differences_are_those_of_a_paired_test() -> None:
    rng = np.random.default_rng(1)
    a = rng.uniform(0.5, 0.9, 8).tolist()
    b = (np.array(a) - 0.02 + rng.normal(0, 1e-3, 8)).tolist()
    finalists = [Candidate("fcfs+full", "chunk", 2), Candidate(DEFAULT, NONE, 0)]
    choice = choose(
        finalists, {"fcfs+full": runs_of(a), DEFAULT: runs_of(b)}, dict.fromkeys(("fcfs+full", DEFAULT), Verdict.HOLDS)
    )
    behind = choice.of(DEFAULT)
    assert behind is not None
    assert behind.behind == paired(a, b).difference
    assert behind.surely_behind
    assert choice.recommended.policy == "fcfs+full"


@quietly
@given(st.lists(st.tuples(st.sampled_from(sorted(EFFORT)), st.floats(0, 1), st.booleans()), min_size=1, max_size=20))
def test_finalists_are_few_with_the_best_and_the_default_among_them(drawn: list[tuple[str, float, bool]]) -> None:
    tuned = [
        Tuned(Candidate(f"fcfs+fixed:chunk={k + 1}", family, EFFORT[family], bare=bare), [value], 0.0, 1)
        for k, (family, value, bare) in enumerate(drawn)
        if family != NONE
    ]
    tuned.append(Tuned(Candidate(DEFAULT, NONE, 0), [0.5], 0.0, 1))
    tuned.sort(key=lambda t: t.merit, reverse=True)
    chosen = finalists_of(tuned)
    assert chosen[0].policy == DEFAULT
    assert len(chosen) == len(set(chosen)) <= FINALISTS + 1
    assert not any(c.bare for c in chosen)
    assert next(t.candidate for t in tuned if not t.candidate.bare) in chosen
    stock = [t.candidate for t in tuned if t.candidate.family == STOCK and not t.candidate.bare]
    assert not stock or stock[0] in chosen


def task(folder: Path, *, outputs: int, **values: Any) -> Task:
    """A task on requests that follow each other every 100 ms."""
    path = folder / "trace.csv"
    rows = [f"2023-11-16 18:15:{k // 10:02}.{k % 10}000000,{200 + 37 * k},{outputs}" for k in range(40)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    draft = Draft()
    draft.put("name", "advise", "test")
    given = {"trace.file": str(path), "slo": "ttft:1000,tpot_p99:25", "cost_model": "h100-llama3.1-8b", **values}
    for key, value in given.items():
        draft.put(key, value, "test")
    return task_of(draft)


@pytest.mark.parametrize("outputs", [1, 20])
@pytest.mark.parametrize("seats", [None, 48, 1024])
def test_command_lines_are_what_the_scheduler_accepts(tmp_path: Path, outputs: int, seats: int | None) -> None:
    """Read as vLLM would hand them over, with the scheduler's own rule for the size of the buffers."""
    extra = {} if seats is None else {"engine.max_num_seqs": seats}
    given = task(tmp_path, outputs=outputs, **extra)
    most = given.cell.limits.max_num_seqs or 0
    first = first_round(given.look, given.cell.cost, most, ["fcfs+guarded:margin=2%"])
    every = [*first, *second_round(given.look, given.cell.cost, most, first)]
    stock = 0
    for candidate in every:
        start = start_of(given, candidate.policy)
        words = shlex.split(start.command)
        assert words[:3] == ["vllm", "serve", "MODEL"]
        assert shlex.split(" ".join(line.removesuffix("\\") for line in start.lines)) == words
        value = dict(pairwise(words))
        budget, seqs = int(value["--max-num-batched-tokens"]), int(value["--max-num-seqs"])
        assert seqs <= budget
        policy = parse_policy(candidate.policy)
        if start.stock:
            stock += 1
            assert candidate.family in (NONE, STOCK)
            assert policy.chunking.params()["budget"] == budget
            assert str(policy.chunking.params()["threshold"] or "") == value.get("--long-prefill-token-threshold", "")
            continue
        settings = Settings.of(start.settings)
        built, predictor = settings.build()
        assert settings.policy == candidate.policy
        assert (predictor is not None) == built.needs_predictor
        assert settings.objectives() == given.cell.objectives
        length = int(value["--max-model-len"])
        assert length >= given.look.longest
        assert policy.chunking.step_limit(seqs, length) <= budget
        policy.reset(predictor)
    assert stock >= 5


@pytest.mark.parametrize(
    ("name", "gpu", "llm", "tp"),
    [
        ("h100-llama3.1-8b", "h100-sxm", "llama-3.1-8b", 1),
        ("h100-llama3.1-70b-fp8-tp2", "h100-sxm", "llama-3.3-70b-fp8", 2),
        ("l4-qwen-32b-fp8-tp2-estimated", "l4", "qwen-32b-fp8", 2),
    ],
)
def test_memory_is_that_of_the_gpu_that_the_cost_model_is_of(
    tmp_path: Path, name: str, gpu: str, llm: str, tp: int
) -> None:
    given = task(tmp_path, outputs=2, cost_model=name)
    told = {"hardware.gpu": gpu, "hardware.llm": llm, "hardware.tp": tp}
    assert given.cell.memory == task(tmp_path, outputs=2, cost_model=name, **told).cell.memory
    assert given.cell.memory is not None
    assert given.memory_from == given.config.cost_model == name


@pytest.mark.parametrize("name", ["sloweave-paper", "l40s-llama3.1-8b"])
def test_memory_is_unlimited_where_nothing_says_what_there_is(tmp_path: Path, name: str) -> None:
    given = task(tmp_path, outputs=2, cost_model=name)
    assert (given.cell.memory, given.memory_from, given.look.cached) == (None, None, False)


def test_margins_are_tried_as_far_as_the_model_has_them(tmp_path: Path) -> None:
    for name in ("h100-llama3.1-8b", "sloweave-paper"):
        given = task(tmp_path, outputs=2, cost_model=name)
        model = load_cost_model(name)
        found = first_round(given.look, model, 256, [])
        bare = [c for c in found if c.bare]
        assert is_fitted(model) == bool(bare) == any(f"margin={COVERAGE}" in c.policy for c in found)


def test_what_cannot_matter_is_not_tried(tmp_path: Path) -> None:
    """Deadlines without a TPOT objective; λ on requests that decode and share nothing, but for one in the end."""
    prefills = first_round((one := task(tmp_path, outputs=1)).look, one.cell.cost, 256, [])
    assert not [c for c in prefills if c.family == FILL]
    assert len([c for c in prefills if c.family == ORDER]) >= 5
    many = task(tmp_path, outputs=9, slo="ttft:1000")
    decodes = first_round(many.look, many.cell.cost, 256, [])
    assert not [c for c in decodes if c.family in (FILL, ORDER)]


def test_what_is_fixed_by_the_user_stays(tmp_path: Path) -> None:
    values = {"engine.pipeline_depth": 1, "memory.blocks": 500, "cluster.replicas": 3, "trace.rate": 7.0}
    given = task(tmp_path, outputs=9, **values)
    assert given.cell.limits.pipeline_depth == 1
    assert given.cell.memory is not None
    assert given.cell.memory.blocks == 500
    assert given.memory_from is None
    assert given.replicas == 3
    assert given.look.rate == 7.0
    assert given.look.own_rate == pytest.approx(10.0)
    own = task(tmp_path, outputs=9, **{"trace.rate_scale": 4.0}).look
    assert own.rate == pytest.approx(40.0)
