"""What holds exactly: T9 to T12 of the verification plan."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModel
from policies import parse_policy
from sim.engine import simulate
from sim.records import NULL
from tests.engine import strategies
from tests.engine.costs import PAPER, prefill_only
from tests.engine.strategies import Run
from tests.engine.test_invariants import first_steps
from tests.seeded import cases, either, pick, whole
from traces import Trace


def trace_of(arrivals: list[int], prompts: list[int], outputs: list[int]) -> Trace:
    return Trace(*(np.array(column, dtype=np.int64) for column in (arrivals, prompts, outputs)))


@cases(
    80,
    whole(1, 300),
    either(whole(1, 320), whole(1, 9)),
    strategies.COSTS,
    pick("fcfs+fixed:chunk={}", "sloweave:cap={}", "fcfs+token-budget:budget={}"),
    whole(0, 50),
)
def test_chunked_prefill_alone(prompt: int, chunk: int, cost: CostModel, policy: str, arrival: int) -> None:
    """T9: TTFT is the sum of the chunks' own steps, each with the context computed before it."""
    expected, context = 0, 0
    while context < prompt:
        tokens = min(chunk, prompt - context)
        expected += cost.step_ns(0, 0, 0, 1, tokens, tokens * context + tokens * (tokens + 1) // 2)
        context += tokens
    run = simulate(trace_of([arrival], [prompt], [1]), parse_policy(policy.format(chunk)), cost)
    assert run.requests["ttft_ns"].tolist() == [expected]


@cases(80, lambda rng: [rng.randint(1, 60) for _ in range(rng.randint(1, 8))], whole(2, 40), strategies.COSTS)
def test_decoding_alone(prompts: list[int], outputs: int, cost: CostModel) -> None:
    """T10: every gap of a fixed batch is the step of that batch, whose contexts grow by one token each."""
    n = len(prompts)
    run = simulate(
        trace_of([0] * n, prompts, [outputs] * n), parse_policy("fcfs+token-budget:budget=1000,seqs=8"), cost
    )
    gaps = [cost.step_ns(n, sum(prompts) + n * j, max(prompts) + j, 0, 0, 0) for j in range(outputs - 1)]
    assert run.steps["duration_ns"].tolist()[1:] == gaps
    for i in range(n):
        assert run.requests["tpot_mean_ns"][i] == sum(gaps) / len(gaps)
        assert run.requests["tpot_p99_ns"][i] == np.percentile(gaps, 99)
        assert run.requests["itl_max_ns"][i] == max(gaps)
        assert run.requests["finished_ns"][i] - run.requests["first_token_ns"][i] == sum(gaps)


@pytest.mark.parametrize(("gap", "slope"), [(120, 0), (100, 0), (99, 1), (80, 20)])
def test_saturation(gap: int, slope: int) -> None:
    """T11: the queue is stable up to λ = 1/S, and beyond it each customer waits S − 1/λ longer than the last."""
    n = 200
    run = simulate(trace_of([gap * i for i in range(n)], [100] * n, [1] * n), parse_policy("fcfs+full"), prefill_only())
    wait = run.requests["first_scheduled_ns"] - run.requests["arrival_ns"]
    assert wait.tolist() == [slope * i for i in range(n)]


def test_saturation_of_the_paper_s_model() -> None:
    """T11 with host overhead: full prefill of 1,000 tokens takes 6.75 ms, so 150 requests/s overload by 1.25 %."""
    service = PAPER.step_ns(0, 0, 0, 1, 1000, 0)
    assert service == 6_750_000
    n, gap = 400, 6_666_667
    run = simulate(trace_of([gap * i for i in range(n)], [1000] * n, [1] * n), parse_policy("srjf-static+full"), PAPER)
    assert run.requests["ttft_ns"].tolist() == [service + (service - gap) * i for i in range(n)]


@cases(80, strategies.runs())
def test_little_s_law_on_every_sample_path(run: Run) -> None:
    """T12: counts integrated over steps equal times summed over requests, in integers, with nothing left over.

    The counts are those that the engine logged at each step, the times come from each request's own row. Waiting is
    counted when a step is decided, so it includes the request that this step starts, and does not yet include
    arrivals during the step before.
    """
    tables = run.simulate()
    steps, requests = tables.steps, tables.requests
    start, duration = steps["start_ns"], steps["duration_ns"]
    end = int((start + duration).max(initial=0))

    has_token = requests["first_token_ns"] != NULL
    left = np.where(requests["finished_ns"] == NULL, end, requests["finished_ns"])
    decoding = (left - requests["first_token_ns"])[has_token]
    assert (steps["n_decode"] * duration).sum() == decoding.sum()

    queued = np.isin(requests["outcome"], [0, 3]) & (requests["visible_step"] != NULL)
    started = requests["first_scheduled_ns"] != NULL
    taken = first_steps(tables)[started]
    seen = start[requests["visible_step"][queued]]
    until = np.where(started, requests["first_scheduled_ns"], end)[queued]
    assert (steps["waiting"] * duration).sum() == (until - seen).sum() + duration[taken].sum()

    at_once = seen - requests["arrival_ns"][queued]
    assert (at_once >= 0).all()
    before = np.concatenate([[0], duration])[requests["visible_step"][queued]]
    assert (at_once <= before).all()
