"""Runs that say where a ratio comes from: batching, and a prefix store shorter than a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.memory import CHUNK
from experiments.prefillonly.grid import POST, cells_of, run_cells_of
from experiments.prefillonly.systems import PREFILLONLY, SETUPS, WORKLOADS, Deployment, deployments
from experiments.tables import Rows
from sim.stats import t_interval

EXPLAINED = ("l4", "a100", "h100")


def variants(setup: str) -> dict[str, Deployment]:
    """Return the variants of one-GPU systems on a set-up that are compared, by what they are."""
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
    }


def explain_rows(
    folder: Path, seeds: Sequence[int], *, setups: Sequence[str] = EXPLAINED, limit: int | None = None, **run: Any
) -> Rows:
    """Return the throughput with all of post recommendation at once, and the hit rate, by set-up and variant.

    Args:
        folder: for the runs.
        seeds: of the workload.
        setups: names of set-ups.
        limit: so many requests.
        run: see :func:`experiments.prefillonly.grid.run_cells_of`.

    Raises:
        ConfigError: if the folder exists and is not to be resumed, or a run has failed.
    """
    cells = [
        cell
        for setup in setups
        for variant, deployment in variants(setup).items()
        for cell in cells_of(
            deployment, f"{POST}:arrivals=all-at-once", seeds, {"setup": setup, "variant": variant}, limit=limit
        )
    ]
    by: dict[tuple[str, str], Rows] = {}
    for row in run_cells_of(cells, seeds, folder, **run):
        by.setdefault((row["setup"], row["variant"]), []).append(row)
    rows: Rows = []
    for (setup, variant), own in by.items():
        throughput = t_interval([r["throughput"] for r in own])
        rows.append(
            {
                "setup": setup,
                "variant": variant,
                "cache_tokens": _cache_tokens(variants(setup)[variant]),
                "throughput": throughput.mean,
                "lo": throughput.lo,
                "hi": throughput.hi,
                "hit_rate": t_interval([r["hit_rate"] for r in own]).mean,
            }
        )
    return rows


def _cache_tokens(deployment: Deployment) -> int:
    return (deployment.memory.blocks or 0) * deployment.memory.block_size
