"""Public runs that the simulator made up: what vLLM would have written had it been the simulator."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from costmodels.hardware import load_llm
from costmodels.kernel_cost import KernelCost
from costmodels.kernels_csv import ONCE, PER_LAYER, SAMPLED, read_csv_kernels
from policies import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.records import Tables
from traces import Trace

MODEL = "llama-3.1-8b"

WALL, ENGINE = 1_787_267_980.25, 27_536.5
"""What the two clocks say at the first arrival, in seconds; both are whole in binary."""


@dataclass(frozen=True)
class Served:
    """What the made-up server was like."""

    blocks: int = 30
    budget: int = 128
    seqs: int = 16
    host_ns: int = 0
    asynchronous: bool = True
    requests: int = 12
    seed: int = 0


def write_kernels(folder: Path) -> None:
    """Write kernel times that grow with the work, at a few points only."""

    def write(name: str, header: list[str], rows: list[tuple[Any, ...]]) -> None:
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    attention = [
        (c, before, n, context, 2 + 0.01 * c + 1e-5 * c * before + 0.2 * n + 1e-4 * n * context)
        for c, before, n, context in itertools.product((0, 16, 512), (0, 2048), (0, 1, 64), (0, 16, 2048))
        if c + n and (c or not before) and bool(n) == bool(context)
    ]
    write("kernel_attention.csv", ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"], attention)
    dense = [(k, t, 3 + 0.04 * t) for k in (*PER_LAYER, *ONCE) for t in (1, 64, 1024)]
    write("kernel_dense.csv", ["layer", "tokens", "time_us"], dense)
    write(
        "kernel_per_sequence.csv",
        ["layer", "sequences", "time_us"],
        [(k, s, 20 + s) for k in SAMPLED for s in (1, 256)],
    )


def meta_of(served: Served) -> dict[str, Any]:
    """Return vLLM's resolved configuration, as far as it is read."""
    return {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "kv_cache": {"num_gpu_blocks": served.blocks, "block_size": 16, "enable_prefix_caching": True},
        "resolved_config": {
            "model_config": {"max_model_len": 1024},
            "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            "scheduler_config": {
                "policy": "fcfs",
                "long_prefill_token_threshold": 0,
                "max_num_batched_tokens": served.budget,
                "max_num_seqs": served.seqs,
                "async_scheduling": served.asynchronous,
            },
            "speculative_config": None,
            "lora_config": None,
            "kv_transfer_config": None,
        },
    }


def write_public_run(folder: Path, served: Served | None = None) -> tuple[Trace, Tables]:
    """Simulate a server short of memory and write what it would have recorded; return what was simulated."""
    files, trace, tables = _public_run(served or Served())
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return trace, tables


@cache
def _public_run(served: Served) -> tuple[dict[str, str], Trace, Tables]:
    with TemporaryDirectory() as made:
        folder = Path(made)
        write_kernels(folder)
        kernels = read_csv_kernels(folder, load_llm(MODEL), served.host_ns)
        files = {path.name: path.read_text() for path in folder.iterdir()}
    rng = np.random.default_rng(served.seed)
    n = served.requests
    # Whole multiples of 2**-20 s, so that sums with both clocks lose nothing.
    arrival = np.concatenate([[0], np.cumsum(rng.integers(0, 6_000, n - 1))]) / 2**20
    trace = Trace(np.rint(arrival * 1e9).astype(np.int64), rng.integers(1, 150, n), rng.integers(2, 80, n))
    tables = simulate(
        trace,
        parse_policy(f"vllm-default:budget={served.budget}"),
        KernelCost(kernels),
        limits=Limits(served.seqs, 1024, pipeline_depth=2 if served.asynchronous else 1),
        cache=Memory(blocks=served.blocks).build(trace),
    )
    r = tables.requests
    # The first request finds the engine idle and is queued the moment it arrives.
    lines = [
        {
            "request_id": f"bench-{i}",
            "input_toks": int(trace.prompt_tokens[i]),
            "output_toks": int(trace.output_tokens[i]),
            "arrival_time": WALL + float(arrival[i]),
            **{
                name: ENGINE + int(r[column][i]) / 1e9
                for name, column in {
                    "queued_ts": "arrival_ns",
                    "scheduled_ts": "first_scheduled_ns",
                    "first_token_ts": "first_token_ns",
                    "last_token_ts": "finished_ns",
                }.items()
            },
        }
        for i in range(n)
    ]
    files["meta.json"] = json.dumps(meta_of(served))
    files["requests.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
    return files, trace, tables
