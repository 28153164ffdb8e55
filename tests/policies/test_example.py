"""The example of the README is a certified policy that does what it says."""

from __future__ import annotations

from pathlib import Path

from costmodels import LinearCost
from policies import RequestView, load_plugin, parse_policy
from policies.checks import check_policy
from sim.engine import simulate
from tests.policies.strategies import queue
from tests.seeded import cases, whole, wide
from traces.synthetic import generate

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


def test_it_is_certified() -> None:
    (part,) = load_plugin(EXAMPLE)
    assert check_policy(part) == []
    assert check_policy(parse_policy("short-lane:short=100,head_start=0+deadline-fill:tpot=25")) == []


@cases(100, queue(min_size=2), whole(1, 8), wide(20_000))
def test_a_long_prompt_is_overtaken_only_within_its_head_start(
    requests: list[RequestView], short: int, head_start: int
) -> None:
    load_plugin(EXAMPLE)
    ordering = parse_policy(f"short-lane:short={short},head_start={head_start}+full").ordering
    order = sorted(requests, key=lambda r: (ordering.key(r), r.arrival_ns, r.number))
    for position, later in enumerate(order):
        for earlier in order[position + 1 :]:
            if later.arrival_ns > earlier.arrival_ns:
                assert later.prompt_tokens <= short < earlier.prompt_tokens
                assert later.arrival_ns - earlier.arrival_ns <= head_start * 1_000_000


def test_it_shortens_the_wait_of_short_prompts() -> None:
    """A simulation under load, on the same trace as first come, first served."""
    load_plugin(EXAMPLE)
    trace = generate("mixed", seed=1, n=300)
    waits = {}
    for policy in ("short-lane:short=512+fixed:chunk=1024", "fcfs+fixed:chunk=1024"):
        requests = simulate(trace, parse_policy(policy), LinearCost()).requests
        waits[policy] = requests["ttft_ns"][trace.prompt_tokens <= 512].mean()
    short_lane, fcfs = waits.values()
    assert short_lane < fcfs
