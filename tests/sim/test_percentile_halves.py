"""Halfway between two values numpy goes down from the upper one, which is another float than up from the lower."""

from __future__ import annotations

import numpy as np

from sim.stats import percentiles


def test_the_middle_of_two_values_is_numpy_s() -> None:
    low, high = 0.016527635528529094, 81.32702392002724
    assert low + (high - low) * 0.5 != high - (high - low) * 0.5
    assert percentiles(np.array([low, high]), [50]) == [float(np.percentile([low, high], 50))]
