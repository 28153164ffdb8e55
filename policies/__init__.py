"""Scheduling policies: what to run next. The same objects decide in the simulator and inside vLLM."""

from policies.base import (
    ACCEPT,
    Admission,
    Chunking,
    Decision,
    Observer,
    Ordering,
    Part,
    Policy,
    PolicyError,
    QueueObserver,
)
from policies.queue import PolicyQueue
from policies.registry import ALIASES, load_plugin, parts, register
from policies.spec import PolicySpec, parse_policy
from policies.views import BatchView, Candidate, Grant, LoadView, RequestView, ServiceClass, StepRecord

__all__ = [
    "ACCEPT",
    "ALIASES",
    "Admission",
    "BatchView",
    "Candidate",
    "Chunking",
    "Decision",
    "Grant",
    "LoadView",
    "Observer",
    "Ordering",
    "Part",
    "Policy",
    "PolicyError",
    "PolicyQueue",
    "PolicySpec",
    "QueueObserver",
    "RequestView",
    "ServiceClass",
    "StepRecord",
    "load_plugin",
    "parse_policy",
    "parts",
    "register",
]
