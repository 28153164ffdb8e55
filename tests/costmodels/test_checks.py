"""check_cost_model certifies what is right and names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from costmodels import CostModel, LinearCost, load_cost_model, shipped_models, with_margin
from costmodels.checks import check_cost_model
from tests.costmodels.strategies import cost
from tests.seeded import cases


@pytest.mark.parametrize("name", shipped_models())
def test_every_shipped_model_is_certified(name: str) -> None:
    assert check_cost_model(load_cost_model(name)) == []


@pytest.mark.parametrize("margin", ["0.5", "5%", "33.333%", "0.0000001"])
def test_every_margin_is_certified(margin: str) -> None:
    assert check_cost_model(with_margin(load_cost_model("sloweave-paper"), margin)) == []


@pytest.mark.parametrize(
    "model",
    [LinearCost(per_token=0), LinearCost(step=0), LinearCost(step=1, decode=0, per_decode=0, prefill=0, per_token=0)],
)
def test_a_model_without_a_slope_is_certified(model: LinearCost) -> None:
    assert check_cost_model(model) == []


@cases(6, cost)
def test_every_linear_model_is_certified(model: CostModel) -> None:
    assert check_cost_model(model) == []


@dataclass(frozen=True)
class Base(CostModel):
    """Sound; the models below are it with one fault each."""

    name: str = "user-made"

    def step_ns(self, n: int, total: int, longest: int, n_prefill: int, tokens: int, pairs: int) -> int:
        return 1000 + 10 * n + total // 7 + longest // 5 + 100 * n_prefill + 3 * tokens + pairs // 50

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "user-made"}


def test_a_user_s_own_model_is_certified() -> None:
    assert check_cost_model(Base()) == []


class FloatSteps(Base):
    says = "ns; it must be an int, at least 1 and less than 2**62"

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) / 2  # type: ignore[return-value]


class NumpySteps(Base):
    says = "ns; it must be an int, at least 1 and less than 2**62"

    def step_ns(self, *step: int) -> int:
        return np.int64(super().step_ns(*step))  # type: ignore[return-value]


class Negative(Base):
    says = "takes -1 ns; it must be an int, at least 1"

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) if step[0] < 4096 else -1


class Nothing(Base):
    says = "takes 0 ns; it must be an int, at least 1"

    def step_ns(self, *step: int) -> int:
        return 0 if step[:2] == (1, 1) else super().step_ns(*step)


class Overflows(Base):
    says = "less than 2**62"

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) + step[4] * 10**13


class Noisy(Base):
    says = "ns when asked again"

    def step_ns(self, *step: int) -> int:
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return super().step_ns(*step) + self.__dict__["asked"]


class FallsWithContext(Base):
    says = "with decode_context = "

    def step_ns(self, *step: int) -> int:
        return 10**12 - step[1]


class FallsWithBatch(Base):
    says = "with n_decode = "

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) + (50_000 if step[0] % 8 else 0)


class FallsWithTokens(Base):
    says = "with prefill_tokens = "

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) + (50_000 if step[4] % 256 else 0)


class PrefillIsFree(Base):
    says = "ns with less to do"

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) if not step[4] else 5_000 + 3 * step[4] + step[0] + step[1] + step[2] + step[5]


class TooMuch(Base):
    says = ", a step of "

    def max_chunk(self, *asked: int) -> int:
        return min(asked[4], super().max_chunk(*asked) + 1)


class TooLittle(Base):
    says = " ns and fit as well"

    def max_chunk(self, *asked: int) -> int:
        return max(0, super().max_chunk(*asked) - 1)


class BeyondTheLimit(Base):
    says = "it must be an int from 0 to"

    def max_chunk(self, *asked: int) -> int:
        return super().max_chunk(*asked) + (asked[5] > 10**15)


class StrictlyBefore(Base):
    says = " ns and fit as well"

    def max_chunk(self, *asked: int) -> int:
        return super().max_chunk(*asked[:5], asked[5] - 1)


class FlatRun(Base):
    says = ", step by step it is "

    def decode_run_ns(self, n: int, total: int, longest: int, steps: int) -> np.ndarray:
        return np.full(steps, self.step_ns(n, total, longest, 0, 0, 0), dtype=np.int64)


class FloatRun(Base):
    says = "it must be an int64 array of that length"

    def decode_run_ns(self, *asked: int) -> np.ndarray:
        return super().decode_run_ns(*asked).astype(float)


class LosesItself(LinearCost):
    says = "comes back from JSON as"


class NotJson(Base):
    says = "json could not be checked: TypeError"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "user-made", "weights": np.zeros(3)}


class Breaks(Base):
    says = "durations could not be checked: ZeroDivisionError"

    def step_ns(self, *step: int) -> int:
        return super().step_ns(*step) // step[3]


FAULTY = [
    FloatSteps,
    NumpySteps,
    Negative,
    Nothing,
    Overflows,
    Noisy,
    FallsWithContext,
    FallsWithBatch,
    FallsWithTokens,
    PrefillIsFree,
    TooMuch,
    TooLittle,
    BeyondTheLimit,
    StrictlyBefore,
    FlatRun,
    FloatRun,
    LosesItself,
    NotJson,
    Breaks,
]


@pytest.mark.parametrize("model", FAULTY)
def test_what_is_wrong_is_said(model: Any) -> None:
    problems = check_cost_model(model())
    assert any(model.says in p for p in problems), problems
    assert all(p.startswith(f"cost model {model().name}: ") for p in problems)
