"""Prometheus metrics beside vLLM's own, where those of the engine's process can be seen.

The scheduler lives in the engine core, which a server runs in a process of its own; ``/metrics`` is answered by
another. What counts here is seen there only in prometheus_client's multi-process mode: where the environment variable
``PROMETHEUS_MULTIPROC_DIR`` names a folder. With the engine in the caller's process, it is the default registry's.
"""

from __future__ import annotations

import logging
import multiprocessing
from functools import cache
from typing import Any

from gpu_runner.known import Known
from gpu_runner.recorder import Step
from gpu_runner.settings import Settings
from policies.units import NS

logger = logging.getLogger("vllm.prefillsim")

PREFIX = "prefillsim:"
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
RATIO_BUCKETS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
TOKEN_BUCKETS = (0, *(2**k for k in range(4, 16)))


class Instruments:
    """The metrics, made once in a process: the registry takes no name twice."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, what: str, labels: tuple[str, ...] = ()) -> Any:
            return Counter(PREFIX + name, what, labels)

        def gauge(name: str, what: str, labels: tuple[str, ...] = ()) -> Any:
            return Gauge(PREFIX + name, what, labels, multiprocess_mode="mostrecent")

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Any:
            return Histogram(PREFIX + name, what, buckets=buckets)

        self.info = gauge("policy_info", "The policy in force; always 1.", ("policy", "cost_model"))
        self.steps = counter("steps", "Steps of the engine.")
        self.seconds = histogram("step_seconds", "How long a step took, host overhead included.", STEP_BUCKETS)
        self.ratio = histogram("step_observed_over_predicted", "Step time over what was predicted.", RATIO_BUCKETS)
        self.granted = histogram("granted_tokens", "Prefill tokens that the policy granted to a step.", TOKEN_BUCKETS)
        self.prefill_tokens = counter("prefill_tokens", "Tokens prefilled, cached ones left out.")
        self.deadline_steps = counter("deadline_steps", "Steps in which a decoding request had a deadline.")
        self.late_steps = counter("late_steps", "Those of them that ended after the earliest deadline.")
        self.exceptions = counter("slo_exceptions", "Steps that the policy let overrun a deadline on purpose.")
        self.requests = counter("requests", "Requests that have left, by outcome.", ("outcome",))
        self.kv_blocks = gauge("kv_blocks", "KV blocks that requests held in the last step.")
        self.waiting = gauge("waiting", "Requests that waited when the last step was decided.")
        self.fallback = gauge("fallback", "1 once the policy has failed and vLLM decides alone.")


@cache
def instruments() -> Instruments:
    """Return this process's metrics."""
    return Instruments()


class Metrics:
    """Counts steps and requests."""

    name = "Prometheus metrics"

    def __init__(self, settings: Settings) -> None:
        self._to = instruments()
        self._to.info.clear()
        self._to.info.labels(settings.policy, settings.cost_model or "").set(1)
        self._to.fallback.set(0)

    def take(self, steps: list[Step], requests: list[tuple[str, Known]]) -> None:
        """Count what has happened."""
        to = self._to
        for step in steps:
            taken = step.end - step.start
            to.seconds.observe(taken / NS)
            to.granted.observe(step.granted)
            if step.predicted:
                to.ratio.observe(taken / step.predicted)
                if step.slack is not None:
                    to.deadline_steps.inc()
                    to.late_steps.inc(taken > step.slack + step.predicted)
        if steps:
            to.steps.inc(len(steps))
            to.prefill_tokens.inc(sum(step.prefill_tokens for step in steps))
            to.exceptions.inc(sum(step.exception for step in steps))
            to.kv_blocks.set(steps[-1].kv_blocks)
            to.waiting.set(steps[-1].waiting)
        for _, note in requests:
            to.requests.labels(note.outcome).inc()

    def fell_back(self, error: str) -> None:
        """Show the failure of the policy."""
        self._to.fallback.set(1)

    def close(self) -> None:
        """Leave the metrics as they are."""


def open_metrics(settings: Settings) -> Metrics | None:
    """Return metrics that somebody can see, ``None`` where nobody can."""
    try:
        from prometheus_client import values
    except ImportError:
        return None
    shared = bool(getattr(values.ValueClass, "_multiprocess", False))
    if not shared and multiprocessing.parent_process() is not None:
        logger.info(
            "prefillsim's metrics are not among those of /metrics: start the server with PROMETHEUS_MULTIPROC_DIR set "
            "to an empty folder"
        )
        return None
    return Metrics(settings)
