"""Levels and rates of a search for capacities, as the command line has them."""

from __future__ import annotations

import math

from experiments.config import ConfigError


def parse_levels(text: str) -> list[float]:
    """Read ``90,99``: levels of attainment in percent, as shares in rising order.

    Raises:
        ConfigError: if one is below 1, for a share in place of a percentage, or not below 100, or there is none.
    """
    levels = set()
    for part in text.split(","):
        value = _number(part)
        if not 1 <= value < 100:
            raise ConfigError(f"--attainment has {part.strip()!r}, but levels are percentages from 1 to below 100")
        levels.add(value / 100)
    return sorted(levels)


def parse_rates(text: str) -> tuple[float, float]:
    """Read ``40:160``: the lowest and the highest rate of a search, in requests per second.

    Raises:
        ConfigError: if it has another form, or is not a range of positive rates.
    """
    low, _, high = text.partition(":")
    rates = (_number(low), _number(high))
    if not 0 < rates[0] < rates[1] < math.inf:
        raise ConfigError(f"--rates {text!r} should read LOW:HIGH in requests/s, like 40:160")
    return rates


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
