"""Rows per step and per request for people who watch a server: parquet files, and Prometheus metrics."""

from __future__ import annotations

from typing import Any, Protocol

from gpu_runner.recorder import Step
from gpu_runner.settings import Settings


class Telemetry(Protocol):
    """What a scheduler tells of its steps and requests."""

    def ended(self, step: Step) -> None:
        """Take a step that has ended; in order."""

    def rejected(self, request: Any, reason: str) -> None:
        """Take a request that was not let in."""

    def left(self, request_id: str, note: Any) -> None:
        """Take a request that has finished or was broken off."""

    def fell_back(self, error: Exception) -> None:
        """Take the failure of the policy."""

    def close(self) -> None:
        """Write out what is left."""


def open_telemetry(settings: Settings) -> Telemetry | None:
    """Return what the settings ask for, ``None`` where that is nothing."""
    return None
