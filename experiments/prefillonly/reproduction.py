"""The paper's numbers and readings of its figures beside ours."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from costmodels.hardware import load_gpu, load_llm
from costmodels.parallel import Efficiency, prefill_cost
from experiments.prefillonly.grid import Grid, Point
from experiments.prefillonly.sustained import CLAIM, MAIN_LEVEL, crossing, curves, log_interval, sustained
from experiments.prefillonly.systems import SETUPS, WORKLOADS, deploy, memory_model
from experiments.prefillonly.table2 import claim_rows, figure4_rows, figure10_rows, table2_rows
from experiments.prefillonly.toy import PAPER, serve_toy
from experiments.tables import Rows
from policies import parse_policy
from sim.cluster import simulate_cluster
from sim.stats import Interval, t_interval
from traces.synthetic import generate

TOLERANCE = 0.2
"""Share by which a number may lie off what is printed, or read off a picture, and still agree: that of Table 2."""

PEAK = Efficiency(
    gemm={},
    gemm_elsewhere=Fraction(1),
    fp8=Fraction(1),
    weight_only=Fraction(1),
    attention=Fraction(1),
    memory=Fraction(1),
    nvlink=Fraction(1),
    pcie=Fraction(1),
    nvlink_latency_ns=0,
    pcie_latency_ns=0,
    host_ns=0,
    chunk_attention=Fraction(0),
)
"""Data sheets' numbers reached in full, and no other cost: what no system can exceed."""

BRIDGED = (
    "0.17 is 1.31 times 0.13, and so is an SXM module's peak over a PCIe card's (989.4 against 756.5 TFLOP/s): the "
    "paper's cards with NVLink were probably modules, where ours are PCIe cards with bridges"
)

ONE_AT_A_TIME = (
    "the paper's is nearer to what a pool that holds one prompt gives, whose stages never work at the same time "
    "(variants.csv); on the other cards ours holds no more than one either"
)

BATCHED = "without batching each post reads all weights, so PrefillOnly cannot be as fast as that on these cards"

WHY = {
    ("Figure 8", "prefillonly"): BRIDGED,
    ("Figure 8", "tensor"): BRIDGED,
    ("Figure 8", "pipeline"): ONE_AT_A_TIME,
    ("Figure 9", "prefillonly"): BATCHED,
    ("Figure 9", "pipeline"): "ours prefills whole prompts, as its memory in Table 2 does, so posts wait behind "
    "profiles in bubbles; by chunks it comes close to PrefillOnly (variants.csv)",
    ("Figure 6(c)", "tensor"): "the paper does not say what its all-reduces reached over PCIe",
    ("Figure 6(e)", "tensor"): "all three readings of this panel lie above ours and two above the data sheets' peaks: "
    "the picture may have been misread",
    ("Figure 6(d)", "tensor"): "ours is about twice x; what the paper's all-reduces reached over NVLink, and how its "
    "throughput of about 35 came about, is not known",
}
"""What a difference is likely to come from, by source and system."""

TOO_FAST = "the paper's is {times:.1f} times what the data sheets' peaks allow with everything at once"


@dataclass(frozen=True)
class Reading:
    """A number of the paper that is printed, or read off a picture, with the range that it stands for."""

    source: str
    quantity: str
    point: Point
    lo: float
    hi: float
    printed: str


def readings() -> list[Reading]:
    """Return what can be read off Figures 6, 8 and 9."""
    with (resources.files("experiments.prefillonly") / "paper.csv").open(encoding="utf-8") as file:
        return [
            Reading(
                r["source"],
                r["quantity"],
                Point(r["setup"], r["workload"], r["system"]),
                float(r["lo"]),
                float(r["hi"]),
                r["printed"],
            )
            for r in csv.DictReader(file)
        ]


@cache
def peak_throughput(point: Point, seed: int) -> float:
    """Return a system's throughput with the whole dataset at once, were data sheets' peaks reached in full."""
    setup = SETUPS[point.setup]
    deployment = deploy(setup, point.system, WORKLOADS[point.workload])
    model = memory_model(setup, point.system)
    link = setup.link if model.tp * model.pp > 1 else None
    cost = prefill_cost(load_llm(setup.llm), load_gpu(setup.gpu), model.tp, model.pp, link, efficiency=PEAK)
    trace = generate(f"{point.workload}:arrivals=all-at-once", seed)
    policies = [parse_policy(deployment.policy) for _ in range(deployment.replicas)]
    run = simulate_cluster(trace, policies, cost, router=deployment.router, memory=deployment.memory)
    return len(trace) * 1e9 / float(run.requests["finished_ns"].max())


def reading_rows(grid: Grid) -> Rows:
    """Return the readings of Figures 6, 8 and 9 beside ours.

    ``peak`` is the throughput that the same system would have at the data sheets' peaks.
    """
    rows: Rows = []
    for reading in readings():
        if reading.point not in grid.points:
            continue
        ours, bound = _measured(grid, reading)
        peak = peak_throughput(reading.point, grid.seeds[0])
        reasons = [WHY.get((reading.source, reading.point.system), "")]
        if reading.source != "Figure 6(d)" and reading.lo > peak:
            reasons.append(TOO_FAST.format(times=reading.lo / peak))
        rows.append(
            _row(
                reading.source,
                f"{reading.quantity}, {reading.point.system}, {reading.point.setup}, {reading.point.workload}",
                reading.printed,
                reading.lo,
                reading.hi,
                ours,
                "; ".join(filter(None, reasons)),
                bound=bound,
                point=reading.point,
                peak=peak,
            )
        )
    return rows


def _measured(grid: Grid, reading: Reading) -> tuple[Interval, str]:
    """Return our interval, and ``<`` or ``>`` where ours is only known to be at most, or at least, so much."""
    if reading.quantity == "throughput":
        return t_interval(grid.capacity(reading.point)), ""
    if reading.quantity.startswith("throughput at"):
        return t_interval(grid.per_seed(reading.point, grid.multiples[-1], "throughput")), ""
    qps = np.array(grid.qps(reading.point))
    ours = curves(grid, reading.point, "jct_mean_ms")
    if reading.quantity.startswith("QPS at"):
        level_ms = 1e3 * float(reading.quantity.split()[-2])
        return log_interval(ours, lambda kept: sustained(qps, kept.mean(axis=0), level_ms))
    other = curves(grid, reading.point._replace(system="prefillonly"), "jct_mean_ms")
    both = np.stack([ours, other], axis=1)
    return log_interval(both, lambda kept: crossing(qps, *kept.mean(axis=0)))


def _row(
    source: str,
    what: str,
    printed: str,
    lo: float,
    hi: float,
    ours: Interval,
    why: str,
    *,
    bound: str = "",
    point: Point | None = None,
    peak: float | None = None,
) -> dict[str, Any]:
    agrees = _near(ours, lo, hi, bound)
    return {
        "source": source,
        "what": what,
        "point": point,
        "paper": printed,
        "paper_lo": lo,
        "paper_hi": hi,
        "ours": ours.mean,
        "lo": ours.lo,
        "hi": ours.hi,
        "bound": bound,
        "peak": peak,
        "verdict": "agrees" if agrees else "differs",
        "why": "" if agrees else why,
    }


def _near(ours: Interval, lo: float, hi: float, bound: str) -> bool:
    assert ours.mean is not None
    low = ours.mean if ours.lo is None else ours.lo
    high = ours.mean if ours.hi is None else ours.hi
    low, high = (0.0 if bound == "<" else low), (np.inf if bound == ">" else high)
    return low <= hi * (1 + TOLERANCE) and high >= lo * (1 - TOLERANCE)


def exact_rows() -> Rows:
    """Return what has no seeds: Table 2, Figures 4, 5 and 10, and the single numbers about memory."""
    rows: Rows = []

    def add(source: str, what: str, paper: float, ours: float, why: str) -> None:
        rows.append(_row(source, what, f"{paper:g}", paper, paper, Interval(ours, None, None), why))

    for r in table2_rows():
        add("Table 2", f"maximum input length, {r['system']}, {r['gpu']}", r["paper"], r["ours"], r["why"])
    for r in figure4_rows():
        if r["paper"] is not None:
            add("Figure 4", f"{r['tensor']} over one layer's KV", r["paper"], float(r["of_layer_kv"]), "")
    for ordering, (order, hits) in PAPER.items():
        served = serve_toy(ordering)
        exact = (served.order, served.hits) == (order, hits)
        rows.append(
            _row(
                "Figure 5",
                f"{ordering}, order {served.order}: cache hits",
                f"{order}: {hits}",
                hits,
                hits,
                Interval(float(served.hits), None, None),
                "",
            )
            | {"verdict": "agrees" if exact else "differs"}
        )
    for r in figure10_rows():
        if r["paper"] is not None and r["mode"] != "paged":
            add("Figure 10", f"{r['variant']}, times the length of whole prompts", r["paper"], r["times_paged"], "")
    for r in claim_rows():
        add("§4, §5", r["claim"], r["paper"], r["ours"], r["why"])
    return rows


def claim_verdicts(ratios: Rows) -> Rows:
    """Return the ratios that the paper's "1.4 to 4.0 times the QPS" is about: at x, at equal mean and P99 latency."""
    return [row for row in ratios if row["level_at"] == MAIN_LEVEL]


def counted(rows: Rows, verdicts: Sequence[str] = ("within", "unclear", "below", "above")) -> str:
    """Return how many rows have each verdict, in words."""
    return ", ".join(f"{sum(r['verdict'] == v for r in rows)} {v}" for v in verdicts) + (
        f" {CLAIM[0]:g} to {CLAIM[1]:g}"
    )
