"""Runs that say where a ratio or a difference comes from: batching, short prefix stores, and what cards they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.memory import CHUNK
from experiments.prefillonly.grid import CREDIT, POST, cells_of, run_cells_of
from experiments.prefillonly.systems import (
    PREFILLONLY,
    SETUPS,
    WORKLOADS,
    Deployment,
    deploy,
    deployments,
    memory_model,
)
from experiments.tables import Rows
from sim.stats import t_interval


def pipeline_by_chunks(setup: str, longest: int) -> Deployment:
    """Return pipeline parallelism that splits prompts into chunks, which Table 2 says that the paper's did not."""
    chosen = SETUPS[setup]
    model = replace(memory_model(chosen, "pipeline"), mode="chunked")
    whole = deploy(chosen, "pipeline", longest)
    return replace(
        whole,
        policy=f"fcfs+token-budget:budget={CHUNK}",
        cost=f"{whole.cost},chunk={CHUNK}",
        memory=replace(whole.memory, blocks=model.kv_blocks_after_profile(longest)),
    )


def post_variants(setup: str) -> dict[str, Deployment]:
    """Return the variants of systems on a set-up that serve post recommendation, by what they are."""
    longest = WORKLOADS[POST]
    own = deployments(SETUPS[setup], longest)
    ours, chunked = own[PREFILLONLY], own["chunked"]
    whole = -(-longest // ours.memory.block_size)
    return {
        "PrefillOnly": ours,
        "PrefillOnly, its store as long as the longest prompt": replace(
            ours, memory=replace(ours.memory, blocks=max(whole, ours.memory.blocks or 0))
        ),
        "PrefillOnly's cost and FCFS, several prompts per step": replace(
            ours, policy=f"fcfs+token-budget:budget={longest}", memory=chunked.memory
        ),
        "chunked prefill": chunked,
        "chunked prefill, one prompt at a time": chunked.with_policy(f"fcfs+token-budget:budget={CHUNK},seqs=1"),
        "pipeline parallel": own["pipeline"],
        "pipeline parallel, by chunks": pipeline_by_chunks(setup, longest),
    }


def credit_variants(setup: str) -> dict[str, Deployment]:
    """Return the variants that serve credit verification."""
    longest = WORKLOADS[CREDIT]
    own = deployments(SETUPS[setup], longest)
    pipeline = own["pipeline"]
    # vLLM never gives out one block of a pool.
    one = -(-longest // pipeline.memory.block_size) + 1
    found = {
        "PrefillOnly": own[PREFILLONLY],
        "pipeline parallel": pipeline,
        "pipeline parallel, by chunks": pipeline_by_chunks(setup, longest),
        "pipeline parallel, a pool for one prompt": replace(pipeline, memory=replace(pipeline.memory, blocks=one)),
    }
    if setup == "h100-nvlink":
        found["PrefillOnly on SXM modules"] = deploy(replace(SETUPS[setup], gpu="h100-sxm"), PREFILLONLY, longest)
    return found


def explain_rows(
    folder: Path, seeds: Sequence[int], *, setups: Sequence[str] = tuple(SETUPS), limit: int | None = None, **run: Any
) -> Rows:
    """Return the throughput with all of a workload at once, and the hit rate, by workload, set-up and variant.

    Args:
        folder: for the runs.
        seeds: of the workload.
        setups: names of set-ups.
        limit: so many requests.
        run: see :func:`experiments.prefillonly.grid.run_cells_of`.

    Raises:
        ConfigError: if the folder exists and is not to be resumed, or a run has failed.
    """
    deployed = {
        (workload, setup, variant): deployment
        for workload, variants in ((POST, post_variants), (CREDIT, credit_variants))
        for setup in setups
        if (workload, setup) != (POST, "h100-nvlink")  # one GPU's systems are the same without
        for variant, deployment in variants(setup).items()
    }
    cells = [
        cell
        for (workload, setup, variant), deployment in deployed.items()
        for cell in cells_of(
            deployment,
            f"{workload}:arrivals=all-at-once",
            seeds,
            {"workload": workload, "setup": setup, "variant": variant},
            limit=limit,
        )
    ]
    by: dict[tuple[str, str, str], Rows] = {}
    for row in run_cells_of(cells, seeds, folder, **run):
        by.setdefault((row["workload"], row["setup"], row["variant"]), []).append(row)
    rows: Rows = []
    for (workload, setup, variant), own in by.items():
        throughput = t_interval([r["throughput"] for r in own])
        memory = deployed[workload, setup, variant].memory
        rows.append(
            {
                "workload": workload,
                "setup": setup,
                "variant": variant,
                "cache_tokens": (memory.blocks or 0) * memory.block_size,
                "throughput": throughput.mean,
                "lo": throughput.lo,
                "hi": throughput.hi,
                "hit_rate": t_interval([r["hit_rate"] for r in own]).mean,
            }
        )
    return rows
