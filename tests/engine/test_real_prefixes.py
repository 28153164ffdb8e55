"""Public traces with their real prefixes in vLLM's pool."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from costmodels.io import load_cost_model
from policies import parse_policy
from sim.content import ContentTree
from sim.engine import simulate
from sim.memory import Memory
from sim.records import FINISHED
from traces.io import read_trace

FOLDER = Path(os.environ.get("PREFILLSIM_TRACES") or Path(__file__).parents[3] / "shared" / "traces")

COST = "prefill:llm=llama-3.1-8b,gpu=h100-sxm"


CASES = {
    "mooncake_conversation.jsonl": (600, (None, 128_000, 64_000, 32_000, 16_000)),
    "mooncake_synthetic.jsonl": (600, (None, 128_000, 64_000, 32_000, 16_000)),
    "ragpulse_trace.jsonl": (300, (64_000, 32_000, 16_000, 8_000, 4_000)),
}
"""How many requests, and capacities in blocks: none so small that it rejects one, none larger than all content but the
first two, which have no bound."""


@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_the_hit_rate_falls_with_each_halving_of_capacity(name: str) -> None:
    """Token by token in blocks of 16; the traces' own figure of ideal reuse is another, over blocks of 512."""
    file = FOLDER / name
    if not file.is_file():
        pytest.skip(f"the public trace {name} is not in {FOLDER}; set PREFILLSIM_TRACES to its folder")
    limit, capacities = CASES[name]
    trace = read_trace(file).limit(limit)
    tree = ContentTree(trace, 16)
    cost = load_cost_model(COST)
    rates = []
    for blocks in capacities:
        run = simulate(trace, parse_policy("vllm-default"), cost, cache=Memory(blocks=blocks).build(trace, tree))
        assert (run.requests["outcome"] == FINISHED).all()
        rates.append(int(run.requests["cached_tokens"].sum()) / int(trace.prompt_tokens.sum()))
    assert all(more > less > 0 for more, less in pairwise(rates)), rates
