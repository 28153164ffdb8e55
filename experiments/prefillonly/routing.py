"""Left out by the paper: routers over 2 to 64 replicas."""

from __future__ import annotations

from dataclasses import replace

from experiments.prefillonly.bench import MODES, POST, Point, arriving, at_once, saturation
from experiments.prefillonly.hitrates import SETUP
from experiments.prefillonly.panels import Panels
from experiments.prefillonly.study import Seeds, Study
from experiments.prefillonly.systems import WORKLOADS, deploy
from sim.routers import ROUTERS

REPLICAS = (2, 8, 64)

USERS = 4
"""Per replica."""

REQUESTS = 10
"""Per user."""

LOAD = 0.7
"""Of what two replicas do with everything there at once, in proportion."""


def routing_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Every router with 2 to 64 replicas at one load per replica, whole users at once or one request after another."""
    system = deploy(SETUP, "prefillonly", WORKLOADS[POST])
    points: list[Point] = []
    pair = saturation(system, at_once(_workload(2)), seeds, jobs)
    for mode in ("users", "spread"):
        for replicas in REPLICAS:
            load = arriving(mode, LOAD * pair * replicas / 2, _workload(replicas))
            for router in ROUTERS:
                at = {"arrivals": mode, "replicas": replicas, "router": router}
                points.append((at, replace(system, replicas=replicas, router=router), load))
    return points


def _workload(replicas: int) -> str:
    return f"{POST}:users={USERS * replicas},requests_per_user={REQUESTS}"


ROUTING = Study(
    stem="left-out-routing",
    title=f"Routers, post recommendation with {REQUESTS} requests per user, {LOAD:g} of capacity",
    setup="H100 PCIe, Llama-3.3-70B FP8",
    by=("arrivals", "replicas", "router"),
    points=routing_points,
    panels=Panels(
        x="replicas",
        x_label="replicas",
        series="router",
        metrics=("hit_rate", "mean_s", "p99_s"),
        across="arrivals",
        titles=MODES,
    ),
    over="router",
    base="user",
)
