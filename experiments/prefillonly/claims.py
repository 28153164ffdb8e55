"""Numbers of PrefillOnly that no other table has, beside ours: its data sets, its proxy, and what decoding costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from costmodels.hardware import load_gpu, load_llm
from costmodels.io import load_cost_model
from costmodels.proxies import PAPER_PEARSON, correlation_table
from experiments.artefacts import USABLE
from experiments.costmodels_shown import beyond_range
from experiments.prefillonly.systems import SETUPS, WORKLOADS
from experiments.tables import Rows, csv_bytes
from policies.spec import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from sim.stats import t_interval
from sim.store import atomic_write
from traces.schema import Trace
from traces.synthetic import generate

POST, CREDIT = WORKLOADS

PAPER_TOKENS = {POST: 14_000_000, CREDIT: 3_000_000}
"""Of the whole data sets (Table 1)."""

PAPER_LONGEST = 87_000
"""On the A100, where the paper correlated uncached tokens with times (Table 2)."""

PAPER_DECODING = 1.5
"""How many times as long 2,048 tokens take with 256 output tokens as with one, Llama-3.1-8B on an H100."""

REQUESTS, PROMPT, OUTPUT = 500, 2_048, 256

KV_BLOCK = 16

VLLM_DEFAULT = "fcfs+token-budget:budget=8192,seqs=1024"
"""What vLLM does by itself on an H100."""


def draw_claims(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Write ``claims.csv``.

    Raises:
        OSError: if it cannot be written.
    """
    path = folder / "claims.csv"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(path, csv_bytes(claim_rows(seeds)))
    return [path]


def claim_rows(seeds: Sequence[int]) -> Rows:
    """Return one row per number: ``source``, ``claim``, the paper's, ours, and its 95 % interval if it has seeds."""
    rows: Rows = []
    for workload, paper in PAPER_TOKENS.items():
        tokens = t_interval([float(generate(workload, seed).prompt_tokens.sum()) for seed in seeds])
        row = {"source": "Table 1", "claim": f"tokens, {workload}", "paper": float(paper)}
        rows.append(row | {"ours": tokens.mean, "lo": tokens.lo, "hi": tokens.hi})
    for longest, pearson in pearsons().items():
        claim = f"Pearson's r of uncached tokens with the time of a step, up to {longest:,} tokens"
        printed = PAPER_PEARSON if longest == PAPER_LONGEST else None
        rows.append({"source": "§6.3", "claim": claim, "paper": printed, "ours": pearson, "lo": None, "hi": None})
    claim = f"{PROMPT:,} tokens with {OUTPUT} output tokens over the same with one, time (H100, Llama-3.1-8B)"
    ours = decoding_ratio()
    return [*rows, {"source": "text", "claim": claim, "paper": PAPER_DECODING, "ours": ours, "lo": None, "hi": None}]


def pearsons(lengths: Sequence[int] = (20_000, PAPER_LONGEST)) -> dict[int, float]:
    """Return the correlation of uncached tokens with times, by the longest input, of Qwen-32B FP8 on an A100."""
    setup = SETUPS["a100"]
    cost = load_cost_model(f"prefill:llm={setup.llm},gpu={setup.gpu}")
    return {row["longest"]: row["pearson"] for row in correlation_table([cost], ["tokens"], lengths)}


def decoding_ratio() -> float:
    """Return how many times as long requests take with 256 output tokens as with one, all there at once."""
    llm, gpu = load_llm("llama-3.1-8b"), load_gpu("h100-sxm")
    cost = load_cost_model("h100-llama3.1-8b")
    left = USABLE * gpu.memory_bytes - llm.weight_bytes
    memory = Memory(blocks=int(left / llm.kv_bytes_per_token) // KV_BLOCK, prefix_cache=False)
    spans = []
    for output in (OUTPUT, 1):
        lengths = np.full(REQUESTS, PROMPT, dtype=np.int64)
        trace = Trace(np.zeros_like(lengths), lengths, np.full_like(lengths, output))
        # Memory holds somewhat more context than the model was fitted to.
        with beyond_range():
            run = simulate(trace, parse_policy(VLLM_DEFAULT), cost, cache=memory.build(trace))
        spans.append(float(run.requests["finished_ns"].max()))
    return spans[0] / spans[1]
