"""What no engine can carry out is refused in one sentence, never looped over."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModelError, LinearCost, load_cost_model
from policies import Admission, BatchView, Chunking, Decision, Grant, LoadView, Policy, PolicyError, RequestView
from policies.chunking.full import Full
from policies.ordering.fcfs import Fcfs
from sim.engine import simulate
from sim.limits import Limits
from traces import Trace

TRACE = Trace(np.array([0, 10]), np.array([20, 20]), np.array([3, 3]))


class Granting(Chunking):
    """Always the same grant, unchecked."""

    name = "granting"

    def __init__(self, grant: Grant) -> None:
        self.answer = grant

    def grant(self, batch: BatchView) -> Grant:
        return self.answer


@pytest.mark.parametrize(
    "grant",
    [
        Grant(0),
        Grant(-1),
        Grant(10**20),
        Grant(10, 0),
        Grant(10, -1),
        Grant(10, 1, 0),
        Grant(10, None, -5),
    ],
    ids=str,
)
def test_an_impossible_grant_is_an_error_that_shows_it(grant: Grant) -> None:
    policy = Policy(Fcfs(), Granting(grant), label="mine")
    with pytest.raises(PolicyError, match="policy mine: granting granted Grant") as e:
        simulate(TRACE, policy, load_cost_model("sloweave-paper"))
    assert repr(grant) in str(e.value)


def test_no_tokens_are_fine_while_something_decodes() -> None:
    class OnlyWhenIdle(Granting):
        def grant(self, batch: BatchView) -> Grant:
            return Grant(0 if batch.n_decode else batch.candidates[0].remaining)

    policy = Policy(Fcfs(), OnlyWhenIdle(Grant(0)))
    requests = simulate(TRACE, policy, load_cost_model("sloweave-paper")).requests
    assert (requests["finished_ns"] > 0).all()
    assert requests["first_scheduled_ns"][1] == requests["finished_ns"][0]


def test_an_unknown_verdict_is_no_redirection() -> None:
    class Maybe(Admission):
        name = "maybe"

        def admit(self, request: RequestView, load: LoadView) -> Decision:
            return Decision("maybe", "x")

    policy = Policy(Fcfs(), Full(), Maybe(), label="mine")
    with pytest.raises(PolicyError, match="policy mine: maybe answered 'maybe', which is none of accept"):
        simulate(TRACE, policy, load_cost_model("sloweave-paper"))


@pytest.mark.parametrize("output", [1, 4])
def test_a_clock_that_leaves_64_bits_is_refused(output: int) -> None:
    trace = Trace(np.array([0]), np.array([2**31]), np.array([output]))
    slow = LinearCost(name="slow", per_token=10**12)
    with pytest.raises(CostModelError, match="cost model slow: the clock ran past"):
        simulate(trace, Policy(Fcfs(), Full()), slow)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_model_len"])
@pytest.mark.parametrize("value", [0, -1])
def test_an_engine_without_a_seat_is_refused(name: str, value: int) -> None:
    with pytest.raises(PolicyError, match=f"{name} is {value}"):
        Limits(**{name: value})
