"""Figure 5: four requests, a prefix cache that holds one, and three orders of serving them, by the real engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from costmodels.io import load_cost_model
from experiments.plotting import GREEN, NARROW, SKY, new_figure, save_figure
from experiments.prefillonly.systems import ORDERINGS, SETUPS
from experiments.tables import Rows
from policies.spec import parse_policy
from policies.units import NS
from sim.engine import simulate
from sim.memory import Memory
from traces.schema import Segments, Trace

BLOCK = 16

PREFIX_BLOCKS = 800
"""Length of the prefixes that A shares with D, and B with C."""

SUFFIX_BLOCKS = {"A": 100, "B": 300, "C": 200, "D": 400}
"""What follows them: A is shorter than C, C than B, B than D, as in the figure."""

SHARES = {"A": 0, "D": 0, "B": 1, "C": 1}

TITLES = {"fcfs": "FIFO", "srjf-static": "SRJF", "srjf-calibrated": "SRJF, calibrated"}

PAPER = {"fcfs": ("A B C D", 1), "srjf-static": ("A C B D", 1), "srjf-calibrated": ("A D C B", 2)}
"""The orders and their cache hits as printed (Figure 5)."""


@dataclass(frozen=True)
class Served:
    """What one ordering made of the four requests."""

    ordering: str
    order: str
    hits: int
    """Requests that found their prefix in the cache."""
    rows: Rows
    """One per request: name, start and end in seconds, and whether it hit."""


def toy_trace() -> Trace:
    """Return the four requests, which arrive together in the order of their names."""
    names = sorted(SUFFIX_BLOCKS)
    ids, tokens = [], []
    for k, name in enumerate(names):
        ids += [SHARES[name], 2 + k]
        tokens += [PREFIX_BLOCKS * BLOCK, SUFFIX_BLOCKS[name] * BLOCK]
    lengths = np.array(tokens, dtype=np.int64).reshape(-1, 2).sum(axis=1)
    return Trace(
        np.zeros(len(names), dtype=np.int64),
        lengths,
        np.ones(len(names), dtype=np.int64),
        segments=Segments(
            np.arange(0, 2 * len(names) + 1, 2, dtype=np.int64),
            np.array(ids, dtype=np.int64),
            np.array(tokens, dtype=np.int64),
        ),
        id=np.array(names, dtype=object),
        name="figure5",
    )


def serve_toy(ordering: str) -> Served:
    """Serve the four requests under one of :data:`experiments.prefillonly.systems.ORDERINGS`."""
    trace = toy_trace()
    longest = int(trace.prompt_tokens.max())
    memory = Memory(blocks=longest // BLOCK, block_size=BLOCK, regime="store", max_input=longest)
    setup = SETUPS["l4"]
    cost = load_cost_model(f"prefill:llm={setup.llm},gpu={setup.gpu}")
    run = simulate(trace, parse_policy(ORDERINGS[ordering]), cost, cache=memory.build(trace))
    requests = run.requests
    started = requests["first_scheduled_ns"]
    assert trace.id is not None
    rows: Rows = [
        {
            "ordering": TITLES[ordering],
            "request": str(trace.id[i]),
            "start_s": float(started[i] / NS),
            "end_s": float(requests["finished_ns"][i] / NS),
            "hit": bool(requests["cached_tokens"][i] > 0),
        }
        for i in np.argsort(started, kind="stable").tolist()
    ]
    return Served(ordering, " ".join(r["request"] for r in rows), sum(r["hit"] for r in rows), rows)


def draw_figure5(folder: Path) -> list[Path]:
    """Write Figure 5: when each request runs under each ordering, hits in another colour."""
    served = [serve_toy(ordering) for ordering in ORDERINGS]
    with new_figure(NARROW * 1.35, 2.0) as figure:
        axis = figure.subplots()
        for k, one in enumerate(served):
            for row in one.rows:
                width = row["end_s"] - row["start_s"]
                colour = GREEN if row["hit"] else SKY
                axis.barh(k, width, left=row["start_s"], color=colour, edgecolor="white", height=0.62)
                axis.text(row["start_s"] + width / 2, k, row["request"], ha="center", va="center", fontsize=9)
            end = one.rows[-1]["end_s"]
            axis.annotate(
                f"{one.hits} hit" + "s" * (one.hits != 1), (end, k), (4, 0), textcoords="offset points", va="center"
            )
        axis.set_yticks(range(len(served)), [TITLES[one.ordering] for one in served])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.set_xlim(0, 1.12 * max(one.rows[-1]["end_s"] for one in served))
        axis.set_xlabel("time (s)")
        axis.barh([0], [0], color=SKY, label="computed whole")
        axis.barh([0], [0], color=GREEN, label="prefix found in the cache")
        figure.suptitle("Figure 5: a cache that holds one request")
        figure.legend(loc="outside lower center", ncols=2)
        return save_figure(figure, folder, "figure5", [row for one in served for row in one.rows])
