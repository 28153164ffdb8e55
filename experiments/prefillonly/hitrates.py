"""Left out by the paper: the ordering alone in one engine, and hit rates over the rate for every system."""

from __future__ import annotations

from experiments.prefillonly.bench import CREDIT, MODES, POST, Load, Point, arriving, at_once, saturation
from experiments.prefillonly.panels import Panels
from experiments.prefillonly.study import Seeds, Study
from experiments.prefillonly.systems import LAM, SETUPS, WORKLOADS, deploy, deployments

SETUP = SETUPS["h100"]
"""Where the paper's Figure 9 was measured."""

ORDERINGS = {
    "FCFS": "fcfs+full",
    "static SRJF": "srjf-static+full",
    "calibrated, λ=0": "prefillonly:lam=0",
    "calibrated, λ=500": "prefillonly:lam=500",
}

SYSTEM_NAMES = {
    "paged": "PagedAttention",
    "chunked": "chunked prefill",
    "pipeline": "PP=2",
    "tensor": "TP=2",
    "prefillonly": "PrefillOnly",
    "calibrated": "chunked, calibrated SRJF",
}


def ordering_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """PrefillOnly's engine under four orderings, post recommendation in three arrival modes, and credit."""
    points: list[Point] = []
    for workload, modes in ((POST, tuple(MODES)), (CREDIT, ("credit",))):
        system = deploy(SETUP, "prefillonly", WORKLOADS[workload])
        x = saturation(system, at_once(workload), seeds, jobs)
        for mode in modes:
            for multiple in (0.5, 1.0, 2.0):
                rate = multiple * x
                load = Load(CREDIT, rate) if mode == "credit" else arriving(mode, rate)
                for name, policy in ORDERINGS.items():
                    at = {"arrivals": mode, "multiple": multiple, "ordering": name, "qps": rate}
                    points.append((at, system.with_policy(policy), load))
    return points


ORDERING = Study(
    stem="left-out-orderings",
    title="One engine, four orderings",
    setup=SETUP.title,
    by=("arrivals", "multiple", "ordering"),
    beside=("qps",),
    points=ordering_points,
    panels=Panels(
        x="multiple",
        x_label="rate / x",
        series="ordering",
        metrics=("hit_rate", "mean_s", "p99_s"),
        across="arrivals",
        titles={
            "users": "whole users",
            "requests": "shuffled",
            "spread": "over time",
            "credit": "credit verification",
        },
    ),
    over="ordering",
    base="FCFS",
)


def hit_rate_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Every system that fits, and chunked prefill in PrefillOnly's order, over the rate, in three arrival modes."""
    longest = WORKLOADS[POST]
    systems = deployments(SETUP, longest)
    chunking = systems["chunked"].policy.partition("+")[2]
    systems["calibrated"] = systems["chunked"].with_policy(f"srjf-calibrated:lam={LAM}+{chunking}")
    x = saturation(systems["prefillonly"], at_once(), seeds, jobs)
    points: list[Point] = []
    for mode in MODES:
        for multiple in (0.25, 1.0, 2.0, 4.0):
            for name, system in systems.items():
                at = {"arrivals": mode, "multiple": multiple, "system": name, "qps": multiple * x}
                points.append((at, system, arriving(mode, multiple * x)))
    return points


HIT_RATES = Study(
    stem="left-out-hit-rates",
    title="Prefix hits, throughput and utilisation over the rate, post recommendation",
    setup=SETUP.title,
    by=("arrivals", "multiple", "system"),
    beside=("qps",),
    points=hit_rate_points,
    panels=Panels(
        x="multiple",
        x_label="rate / x",
        series="system",
        metrics=("hit_rate", "throughput", "utilisation"),
        across="arrivals",
        titles=MODES,
        names=SYSTEM_NAMES,
    ),
    over="multiple",
    base=1.0,
    also=("system", "prefillonly"),
    compared=("throughput", "hit_rate", "mean_s", "p99_s", "utilisation"),
)
