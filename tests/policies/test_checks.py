"""check_policy certifies what is right and names what is wrong."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from costmodels import LinearCost, with_margin
from policies import (
    ALIASES,
    BatchView,
    Chunking,
    Grant,
    Observer,
    Ordering,
    Part,
    PolicySpec,
    RequestView,
    StepRecord,
    load_plugin,
    parse_policy,
    register,
    registry,
)
from policies.checks import check_policy
from tests.policies.strategies import PARAMETERS, parameters
from tests.seeded import cases, pick

BAD = Path(__file__).with_name("bad_parts.py")


@contextmanager
def bad_parts_loaded() -> Iterator[dict[str, type[Part]]]:
    with patch.object(registry, "_parts", {kind: registry.parts(kind) for kind in registry.KINDS}):
        yield {part.name: part for part in load_plugin(BAD)}


with bad_parts_loaded() as loaded:
    BAD_NAMES = sorted(loaded)


@pytest.fixture(scope="module")
def bad_parts() -> Iterator[dict[str, type[Part]]]:
    with bad_parts_loaded() as loaded:
        yield loaded


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_every_part_is_certified_as_it_comes(kind: str, name: str) -> None:
    assert check_policy(registry.find(kind, name)) == []


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_is_certified(alias: str) -> None:
    assert check_policy(parse_policy(alias)) == []


@pytest.mark.parametrize(
    "text",
    [
        "sloweave:tpot=25,cap=1",
        "sloweave:tpot=25,margin=p99,margins=interactive:2|batch:60",
        "sloweave:margin=5%,age=5,overrun=3",
        "sloweave:tpot=inf,margin=0.5",
        "sloweave:tpot=0.001",
        "edf:ttft=500+token-budget:budget=64,seqs=8,threshold=16+decode-saturation:action=redirect,tpot=10",
        "edf:ttft=inf+token-budget:budget=1,seqs=1+queue-limit:limit=1",
        "srjf-calibrated:lam=0+fixed:chunk=1",
        "srjf-calibrated:lam=inf+full+queue-limit:limit=2,action=redirect",
        "srjf-calibrated:lam=1e-9+fixed:chunk=1000000000",
    ],
)
def test_policies_of_many_settings_are_certified(text: str) -> None:
    assert check_policy(parse_policy(text)) == []


@cases(12, pick(*sorted(PARAMETERS)), lambda rng: rng)
def test_parts_of_any_setting_are_certified(part: tuple[str, str], rng: random.Random) -> None:
    kind, name = part
    params = parameters(kind, name)(rng)
    # A budget below the seats is refused, as it should be; see test_chunkings.
    if name in ("token-budget", "p-pas"):
        params["seqs"] = min(params.get("budget" if name == "token-budget" else "low", 2048), params.get("seqs") or 256)
    assert check_policy(registry.find(kind, name)(**params)) == []


def test_the_cost_model_may_be_given() -> None:
    assert check_policy(parse_policy("sloweave:tpot=25"), predictor=with_margin(LinearCost(), "20%")) == []
    problems = check_policy(parse_policy("sloweave:margin=p99"), predictor=LinearCost())
    assert len(problems) == 1
    assert problems[0].startswith("chunking deadline-fill: cannot begin a run: cost model linear has no quantiles")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_is_wrong_is_said(name: str, bad_parts: dict[str, type[Part]]) -> None:
    part = bad_parts[name]
    problems = check_policy(part)
    assert any(part.says in p for p in problems), problems  # type: ignore[attr-defined]
    assert all(p.startswith(f"{part.kind} {name}: ") for p in problems)
    assert not any("\n" in p for p in problems)


@pytest.mark.usefixtures("bad_parts")
def test_a_policy_with_a_bad_part_is_not_certified() -> None:
    problems = check_policy(parse_policy("clock+stalls+says-no"))
    assert [p.split(":")[0] for p in problems] == [
        "ordering clock",
        "ordering clock",
        "chunking stalls",
        "admission says-no",
    ]


def test_what_a_user_may_do_is_certified() -> None:
    """Choices by the clock that the host gives, own randomness without a state, dictionaries by tenant, learning."""

    @register
    class Hrrn(Ordering):
        """Highest response ratio next, by uncached work."""

        name = "ratio"
        cache_aware = True

        def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
            return max(waiting, key=lambda r: ((now_ns - r.arrival_ns) / r.uncached_tokens, -r.number))

    @register
    class Shuffled(Ordering):
        """A random order that depends on nothing but the number, with weights by tenant."""

        name = "shuffled"
        cache: bool = False

        def key(self, request: RequestView) -> int:
            import random

            weight = {None: 1, "interactive": 5}.get(request.tenant, 2)
            return random.Random(request.number).getrandbits(40) // weight

    @register
    class Probing(Chunking, Observer):
        """Halves the chunk after a long step, else grows it; keeps a memo of its own steps in an array."""

        name = "probing"
        lookahead = 3

        def reset(self, predictor: object) -> None:
            self._chunk = 64
            self._history: list[int] = []

        def observe(self, step: StepRecord) -> None:
            self._history.append(step.duration_ns)
            self._chunk = max(1, self._chunk // 2) if step.duration_ns > 9_000_000 else self._chunk + 8

        def grant(self, batch: BatchView) -> Grant:
            return Grant(self._chunk * len(batch.candidates), None, self._chunk)

    for part in (Hrrn, Shuffled, Probing):
        assert check_policy(part) == []
    assert check_policy(PolicySpec.parse("ratio+probing+queue-limit").build()) == []


def test_what_is_no_part_is_said_so() -> None:
    class Loose(Ordering):
        """Never registered."""

        name = "loose"

    assert check_policy(Loose) == ["ordering loose is not registered; put @register on the class Loose"]

    class Both(Ordering, Chunking):
        """Two parts in one."""

        name = "both"

    (problem,) = check_policy(Both)
    assert problem.startswith(
        "Both must be a subclass of exactly one of Ordering, Chunking and Admission; it is one of"
    )
    (problem,) = check_policy("fcfs+full")  # type: ignore[arg-type]
    assert problem.startswith("str must be a subclass of exactly one of")


def test_checking_leaves_the_part_alone() -> None:
    policy = parse_policy("sloweave:tpot=25")
    policy.reset(LinearCost())
    before = dict(vars(policy.chunking))
    check_policy(policy)
    assert vars(policy.chunking) == before


def test_a_collection_that_somebody_times_is_not_the_policy_s_doing() -> None:
    """As Hypothesis and metrics exporters do: their callbacks read the clock in the middle of anything."""

    def timed(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    threshold = gc.get_threshold()
    gc.callbacks.append(timed)
    try:
        gc.set_threshold(1, 1, 1)
        assert check_policy(registry.find("ordering", "dfs-weight")) == []
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(timed)
    assert gc.isenabled()
