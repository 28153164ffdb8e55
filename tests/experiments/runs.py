"""Small runs for tests of what reads their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.axes import only_cell, plan
from experiments.draft import Draft
from experiments.run import run_info, simulate_cell
from experiments.sweep import run_sweep
from sim.provenance import provenance
from sim.records import Tables
from sim.store import write_run

VALUES: dict[str, Any] = {
    "trace.workload": "mixed",
    "trace.limit": 60,
    "policies": ["sloweave"],
    "seeds": [0],
    "slo": "ttft:1000,tpot_p99:25",
}

SCARCE = {"memory.blocks": 300, "policies": ["vllm-default"]}
"""So little memory that requests are preempted."""


def drafted(**values: Any) -> Draft:
    draft = Draft()
    for key, value in {**VALUES, **values}.items():
        draft.put(key, value, "test")
    return draft


def stored(folder: Path, *, batches: bool = False, **values: Any) -> Tables:
    """Simulate what ``values`` lay over :data:`VALUES`, write it to ``folder``, and return its tables."""
    cell = only_cell(plan(drafted(**values)))
    trace, tables, result = simulate_cell(cell)
    info = run_info(cell, result, provenance(), 0.0)
    write_run(folder, trace, tables, info, summary=result.summary, batches=batches)
    return tables


def swept(folder: Path, axes: dict[str, Any], **values: Any) -> None:
    """Run a sweep into ``folder``."""
    draft = drafted(**values)
    draft.put("sweep", axes, "test.toml")
    run_sweep(plan(draft), out=folder, jobs=1)
