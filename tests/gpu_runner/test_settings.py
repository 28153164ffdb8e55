"""How many requests may run at once under a policy inside vLLM, and whether its buffers hold what a step may bring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.settings import Settings, SettingsError
from policies.base import Chunking, PolicyError
from policies.views import BatchView, Grant


class Seats(Chunking):
    """Wants so many seats, and may put a token of each and a whole prompt into a step."""

    name = "seats"

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted

    def grant(self, batch: BatchView) -> Grant:
        raise NotImplementedError

    def seat_limit(self, max_num_seqs: int | None) -> int | None:
        if self.wanted == 0:
            raise PolicyError("no seat is too few")
        return self.wanted

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return max_num_seqs + max_model_len


SETTINGS = Settings(policy="fcfs+seats")


@given(st.none() | st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(2, 20))
def test_seats_are_the_engines_or_the_policys_and_steps_fit(
    wanted: int | None, most: int, length: int, budget: int
) -> None:
    seats = most if wanted is None or wanted > most else wanted
    if seats + length <= budget:
        assert SETTINGS.seats(Seats(wanted), most, length, budget) == seats
        return
    says = (
        rf"^policy fcfs\+seats may put {seats + length} tokens into a step of {seats} requests of up to {length} "
        rf"tokens, but --max-num-batched-tokens is {budget}: raise it to {seats + length}, or lower"
    )
    with pytest.raises(SettingsError, match=says):
        SETTINGS.seats(Seats(wanted), most, length, budget)


def test_a_policy_that_refuses_so_many_seats_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^policy fcfs\+seats: no seat is too few$"):
        SETTINGS.seats(Seats(0), 4, 5, 100)
