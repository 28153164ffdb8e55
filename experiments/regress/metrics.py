"""What a regression check looks at, and how much worse each figure may become."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.config import ConfigError, suggest


class Metric(NamedTuple):
    """A figure of a run."""

    name: str
    """In tolerances."""
    key: str
    """In :func:`sim.metrics.summarise`."""
    title: str
    higher_is_better: bool
    tolerance: float | None
    """Percent of the baseline's mean; ``None`` is reported and not judged, unless a tolerance is given."""


METRICS = (
    Metric("goodput", "goodput", "goodput, req/s", True, 0.5),
    Metric("attainment", "slo_attainment", "SLO attainment", True, 0.5),
    Metric("ttft_p99", "ttft_p99_ms", "P99 TTFT, ms", False, 1.0),
    Metric("tpot_p99", "tpot_p99_ms", "P99 TPOT, ms", False, 1.0),
    Metric("jct_p99", "jct_p99_ms", "P99 JCT, ms", False, 1.0),
    Metric("ttft_mean", "ttft_mean_ms", "mean TTFT, ms", False, None),
    Metric("jct_mean", "jct_mean_ms", "mean JCT, ms", False, None),
    Metric("throughput", "throughput", "throughput, req/s", True, None),
    Metric("hit_rate", "hit_rate", "hit rate", True, None),
)

GROUPS = {"p99": ("ttft_p99", "tpot_p99", "jct_p99")}
"""Names that stand for several figures."""

NAMES = (*(metric.name for metric in METRICS), *GROUPS)


@dataclass(frozen=True)
class Tolerances:
    """How much worse the mean over seeds may become, in percent of the baseline's."""

    given: Mapping[str, float]
    """By the name of a metric; a metric's own default where it is not given."""

    @classmethod
    def of(cls, table: Mapping[str, tuple[Any, str]], option: str | None = None) -> Tolerances:
        """Read ``[tolerance]``, and over it ``--tolerance NAME:PERCENT,NAME:PERCENT``.

        Args:
            table: by name, the value and what to blame for it.
            option: the text of the option, if it was given.

        Raises:
            ConfigError: naming the name or number that is wrong.
        """
        return cls({**_layer(table), **_layer({} if option is None else _entries(option))})

    def percent(self, metric: Metric) -> float | None:
        """Return the tolerance of a metric, ``None`` for one that is not judged."""
        return self.given.get(metric.name, metric.tolerance)


def _entries(option: str) -> dict[str, tuple[Any, str]]:
    entries: dict[str, tuple[Any, str]] = {}
    for entry in filter(None, (e.strip() for e in option.split(","))):
        name, colon, text = (part.strip() for part in entry.partition(":"))
        if not colon:
            raise ConfigError(f"--tolerance {entry!r} should read NAME:PERCENT, like goodput:0.5")
        if name in entries:
            raise ConfigError(f"--tolerance gives {name} twice")
        try:
            entries[name] = float(text), "--tolerance"
        except ValueError:
            entries[name] = text, "--tolerance"
    return entries


def _layer(entries: Mapping[str, tuple[Any, str]]) -> dict[str, float]:
    """Return the tolerances of one layer, in which a metric's own name goes before that of a group."""
    layer: dict[str, float] = {}
    for name, (value, origin) in sorted(entries.items(), key=lambda entry: entry[0] not in GROUPS):
        if name not in NAMES:
            raise ConfigError(f"{origin}: no metric has the name {name}{suggest(name, NAMES)}")
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if not (usable and math.isfinite(value) and value >= 0):
            raise ConfigError(
                f"{origin}: the tolerance of {name} is {value!r}; it should be a percentage of at least 0"
            )
        layer.update(dict.fromkeys(GROUPS.get(name, (name,)), float(value)))
    return layer
