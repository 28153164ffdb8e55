"""Admissions turn away exactly at their thresholds, and say why."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from costmodels import CostModel, LinearCost
from policies import ACCEPT, Admission, LoadView, PolicyError, RequestView, parse_policy
from policies.views import ServiceClass
from tests.policies.strategies import MS, request_view
from tests.seeded import built, cases, whole, wide

IDLE = LoadView(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Constant(CostModel):
    """Every step takes the same time; what it was asked last is kept."""

    ns: int

    def step_ns(self, *features: int) -> int:
        object.__setattr__(self, "asked", features)
        return self.ns

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "constant"}


def admission(text: str, model: CostModel | None = None) -> Admission:
    policy = parse_policy(f"fcfs+full+{text}")
    policy.reset(model)
    assert policy.admission is not None
    return policy.admission


@cases(
    200,
    built(lambda thousandths: f"{thousandths / 1000:.3f}", wide(2000, 1)),
    built(lambda us: Fraction(us, 1000), wide(100_000, 1)),
    whole(-1, 1),
)
def test_saturation_is_exact_at_the_threshold(fraction: str, d_ms: Fraction, off: int) -> None:
    """A decode-only step may stay below the share of D; one that reaches it turns the arrival away."""
    threshold = Fraction(fraction) * d_ms * MS
    predicted = max(1, math.ceil(threshold) + off)
    made = admission(f"decode-saturation:fraction={fraction},tpot={float(d_ms)}", Constant(predicted))
    decision = made.admit(RequestView(0, 0, 10), IDLE)
    assert (decision.verdict == "accept") == (predicted < threshold)


def test_a_share_that_doubles_miss() -> None:
    """0.07 of 25 ms is 1.75 ms; in doubles it is a little more, and a step of 1.75 ms would be let in."""
    assert 0.07 * 25 * MS > 1_750_000
    made = admission("decode-saturation:fraction=0.07,tpot=25", Constant(1_750_000))
    assert made.admit(RequestView(0, 0, 10), IDLE).verdict == "reject"
    made.reset(Constant(1_749_999))
    assert made.admit(RequestView(0, 0, 10), IDLE) == ACCEPT


@pytest.mark.parametrize(("tpot", "most"), [(10, 158), (25, 430), (50, 885)])
def test_with_the_whole_of_d_it_lets_in_as_many_as_can_decode_in_it(tpot: int, most: int) -> None:
    """By the paper's model 159, 431 and 886 decodes fit, and the arrival will be one of them."""
    made = admission(f"decode-saturation:fraction=1,tpot={tpot}", LinearCost())
    for n in (0, most - 1, most, most + 1, 10 * most):
        accepted = made.admit(RequestView(0, 0, 10), LoadView(0, n, 0, 0, 0, 0)) == ACCEPT
        assert accepted == (n <= most)


@cases(150, request_view(), wide(50), wide(10**6), wide(10**4), whole(0, 5))
def test_it_predicts_the_step_in_which_all_that_run_decode(
    request: RequestView, n: int, context: int, longest: int, prefilling: int
) -> None:
    model = Constant(MS)
    load = LoadView(0, n, context, longest, prefilling, 100)
    admission("decode-saturation:tpot=25", model).admit(request, load)
    assert model.asked == (  # type: ignore[attr-defined]
        n + prefilling + 1,
        context + request.prompt_tokens,
        max(longest, request.prompt_tokens),
        0,
        0,
        0,
    )


@pytest.mark.parametrize("action", ["reject", "redirect"])
def test_what_becomes_of_the_arrival_and_why(action: str) -> None:
    made = admission(f"decode-saturation:action={action},tpot=25", LinearCost())
    decision = made.admit(RequestView(0, 0, 10), LoadView(0, 400, 0, 0, 1, 0))
    assert decision.verdict == action
    assert decision.reason == (
        "decode-saturation: a decode-only step of 402 requests would take 23.360 ms, and less than 0.9 of 25 ms is "
        "allowed"
    )
    made = admission(f"queue-limit:action={action},limit=3")
    assert made.admit(RequestView(0, 0, 10), LoadView(0, 0, 0, 0, 0, 2)) == ACCEPT
    decision = made.admit(RequestView(0, 0, 10), LoadView(0, 0, 0, 0, 0, 3))
    assert decision == (action, "queue-limit: 3 requests wait, 3 may")


def test_whose_d_counts() -> None:
    """The policy's own, else the request's; where there is none, or no end to it, everybody may enter."""
    full = LoadView(0, 10_000, 0, 0, 0, 0)
    own = RequestView(0, 0, 10, slo_tpot_ns=25 * MS)
    assert admission("decode-saturation", LinearCost()).admit(own, full).verdict == "reject"
    assert admission("decode-saturation:tpot=1e6", LinearCost()).admit(own, full) == ACCEPT
    assert admission("decode-saturation:tpot=inf", LinearCost()).admit(own, full) == ACCEPT
    assert admission("decode-saturation", LinearCost()).admit(own._replace(slo_tpot_ns=None), full) == ACCEPT


def test_it_needs_a_cost_model() -> None:
    with pytest.raises(PolicyError, match="decode-saturation needs a cost model"):
        admission("decode-saturation:tpot=25")


@pytest.mark.parametrize(
    ("text", "d_ms", "message"),
    [
        ("decode-saturation", (None, None), "decode-saturation has no TPOT objective D to protect: give --slo"),
        (
            "decode-saturation",
            (1, 1.4),
            "decode-saturation would turn every request away: a step with one decode takes 1.305 ms by cost model "
            "linear, and 0.9 of D = 1.4 ms is allowed",
        ),
        ("decode-saturation:tpot=1.45", (25, None), "decode-saturation would turn every request away"),
    ],
)
def test_a_run_in_which_it_could_not_work_is_refused(text: str, d_ms: tuple[float | None, ...], message: str) -> None:
    classes = [ServiceClass(None, None if d is None else round(d * MS), None) for d in d_ms]
    with pytest.raises(PolicyError, match=re.escape(message)):
        parse_policy(f"fcfs+full+{text}").check_objectives(classes, LinearCost())


@pytest.mark.parametrize("d_ms", [(25,), (1, 25), (1, None), (), (1.46,)])
def test_a_run_in_which_it_can_work_is_not_refused(d_ms: tuple[float | None, ...]) -> None:
    classes = [ServiceClass(None, None if d is None else round(d * MS), None) for d in d_ms]
    parse_policy("fcfs+full+decode-saturation").check_objectives(classes, LinearCost())
