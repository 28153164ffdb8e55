"""The engine as a single server equals Ciw, another simulator, customer by customer: D3 of the verification plan."""

from __future__ import annotations

import math
import random

import ciw
import numpy as np

from policies import parse_policy
from sim.engine import simulate
from tests.engine.costs import prefill_only
from tests.seeded import cases
from traces import Trace

UNIT = 64
"""Tokens of the smallest service. Arrivals have residues of their own, so that no two events of Ciw coincide: it would
choose between them by chance."""


def customers(rng: random.Random) -> tuple[list[int], list[int]]:
    """Make arrivals and services of 1 to 50 customers, busy periods and idle ones."""
    n, most = rng.randint(1, 50), rng.choice([0, 3, 6, 6, 6])
    gaps, services = [rng.randint(0, most) for _ in range(n)], [rng.randint(1, 5) for _ in range(n)]
    return [g * UNIT + i for i, g in enumerate(np.cumsum(gaps).tolist())], [s * UNIT for s in services]


def by_ciw(arrivals: list[int], services: list[int], classes: list[int]) -> list[tuple[int, int]]:
    """Return when each customer's service begins and ends; lower classes go first, each in the order of arrival."""
    coming, lasting = {}, {}
    names = sorted(set(classes))
    for k in names:
        at = [a for a, c in zip(arrivals, classes, strict=True) if c == k]
        coming[str(k)] = [ciw.dists.Sequential([*np.diff([0, *at]).tolist(), math.inf])]
        lasting[str(k)] = [ciw.dists.Sequential([s for s, c in zip(services, classes, strict=True) if c == k])]
    network = ciw.create_network(
        arrival_distributions=coming,
        service_distributions=lasting,
        number_of_servers=[1],
        priority_classes={str(k): place for place, k in enumerate(names)},
    )
    queue = ciw.Simulation(network)
    queue.simulate_until_max_time(arrivals[-1] + sum(services) + 1)
    times = {int(r.arrival_date): (int(r.service_start_date), int(r.service_end_date)) for r in queue.get_all_records()}
    return [times[a] for a in arrivals]


def by_us(arrivals: list[int], services: list[int], ordering: str) -> list[tuple[int, int]]:
    trace = Trace(*(np.array(column, dtype=np.int64) for column in (arrivals, services, [1] * len(arrivals))))
    requests = simulate(trace, parse_policy(f"{ordering}+full"), prefill_only(1)).requests
    return list(zip(requests["first_scheduled_ns"].tolist(), requests["finished_ns"].tolist(), strict=True))


@cases(60, customers)
def test_first_come_first_served_is_ciw_s(drawn: tuple[list[int], list[int]]) -> None:
    arrivals, services = drawn
    assert by_us(arrivals, services, "fcfs") == by_ciw(arrivals, services, [0] * len(arrivals))


@cases(60, customers)
def test_shortest_job_first_is_ciw_s_with_sizes_for_classes(drawn: tuple[list[int], list[int]]) -> None:
    arrivals, services = drawn
    assert by_us(arrivals, services, "srjf-static") == by_ciw(arrivals, services, services)
