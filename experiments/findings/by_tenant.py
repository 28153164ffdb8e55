"""What a run came to for each tenant."""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.units import MS, NS
from sim.metrics import met
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, REJECTED
from sim.stats import percentiles
from sim.store import StoredRun


def objectives_of(run: StoredRun) -> Objectives:
    """Return the objectives that a run was held against where its requests have none of their own."""
    return Objectives(**run.info["resolved"]["objectives"])


def seconds(run: StoredRun) -> float:
    """Return a run's duration, first arrival to last finish; 0 where nobody finished."""
    requests = run.requests
    done = requests["finished_ns"][requests["outcome"] == FINISHED]
    return (int(done.max()) - int(requests["arrival_ns"].min())) / NS if len(done) else 0.0


def by_tenant(run: StoredRun) -> dict[str, Any]:
    """Return, for every tenant T of a run, what :func:`sim.metrics.summarise` says of all requests.

    ``rejected_T``, ``goodput_T`` (requests/s, over the duration of the whole run), ``attainment_T``,
    ``ttft_mean_T_ms``, ``ttft_p99_T_ms`` and ``tpot_mean_T_ms``, the last three ``None`` where nobody got that far.
    """
    requests, duration = run.requests, seconds(run)
    good = met(requests, objectives_of(run))
    found: dict[str, Any] = {}
    for tenant in sorted(set(requests["tenant"].tolist())):
        own = requests["tenant"] == tenant
        ttft = requests["ttft_ns"][own & (requests["ttft_ns"] != NULL)]
        gap = requests["tpot_mean_ns"][own]
        gap = gap[~np.isnan(gap)]
        n_met = int(np.count_nonzero(good & own))
        found |= {
            f"rejected_{tenant}": int(np.count_nonzero(requests["outcome"][own] == REJECTED)),
            f"goodput_{tenant}": n_met / duration if duration else 0.0,
            f"attainment_{tenant}": n_met / int(own.sum()),
            f"ttft_mean_{tenant}_ms": float(ttft.mean()) / MS if len(ttft) else None,
            f"ttft_p99_{tenant}_ms": percentiles(ttft, [99])[0] / MS if len(ttft) else None,
            f"tpot_mean_{tenant}_ms": float(gap.mean()) / MS if len(gap) else None,
        }
    return found
