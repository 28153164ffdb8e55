"""Deadline filling with deadlines that add up."""

from __future__ import annotations

from policies.chunking.deadline_fill import DeadlineFill
from policies.registry import register


@register
class DeadlineSum(DeadlineFill):
    """Deadline-fill with deadlines from the first token on: what early tokens were early by, later ones may be late by.

    A request's k-th next token is due k times D after its first, or after the end of its TTFT objective if that is
    later.
    """

    name = "deadline-sum"
    source = "the deadlines of QoServe, Medha and DynaServe in SLOWeave's algorithm; this project's"
    cumulative = True
