"""Figure 2 of SLOWeave: the same 400 ms under a static policy, full prefill and SLOWeave."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from costmodels.io import load_cost_model
from experiments.plotting import WIDE, new_figure, save_figure
from experiments.sloweave.grid import MAIN_TARGET_MS, NAMES, SLOWEAVE
from experiments.step_picture import draw_steps
from experiments.tables import Rows
from policies.spec import parse_policy
from policies.units import MS, ns_from_ms
from sim.engine import simulate
from sim.objectives import Objectives
from traces.synthetic import SLOWEAVE as WORKLOADS
from traces.synthetic import generate

SHOWN = ("fcfs+full", "fcfs+fixed:chunk=1024", SLOWEAVE)
WINDOW_MS = (5000, 5400)
"""Some seconds into the run, when requests wait and many decode."""


def timeline_rows(seed: int = 0) -> Rows:
    """Simulate ``long`` under each policy and return the steps that begin within the window."""
    objectives = Objectives(ttft=ns_from_ms(WORKLOADS["long"].ttft_ms), tpot_p99=MAIN_TARGET_MS * MS)
    cost = load_cost_model("sloweave-paper")
    trace = generate("long", seed)
    rows = []
    for policy in SHOWN:
        steps = simulate(trace, parse_policy(policy), cost, objectives=objectives).steps
        start, duration = steps["start_ns"] / MS, steps["duration_ns"] / MS
        for k in np.flatnonzero((start >= WINDOW_MS[0]) & (start < WINDOW_MS[1])).tolist():
            rows.append(
                {
                    "policy": NAMES[policy],
                    "start_ms": float(start[k]),
                    "duration_ms": float(duration[k]),
                    "prefill_tokens": int(steps["prefill_tokens"][k]),
                    "n_decode": int(steps["n_decode"][k]),
                    "late": bool(duration[k] > MAIN_TARGET_MS and steps["n_decode"][k] > 0),
                }
            )
    return rows


def draw_figure2(folder: Path) -> list[Path]:
    """Write Figure 2: each step as a bar as wide as it lasts and as high as its prefill chunk."""
    rows = timeline_rows()
    with new_figure(WIDE, 4.2) as figure:
        panels = []
        for policy in SHOWN:
            own = [r for r in rows if r["policy"] == NAMES[policy]]
            late = sum(r["late"] for r in own)
            panels.append((f"{NAMES[policy]}: {len(own)} steps, {late} longer than {MAIN_TARGET_MS} ms", own))
        draw_steps(figure, panels, WINDOW_MS)
        figure.suptitle(f"Figure 2: long, seed 0; bars are steps (red: over {MAIN_TARGET_MS} ms), lines decode batches")
        return save_figure(figure, folder, "figure2", rows)
