from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodels.grids import Curve, Grid
from tests.seeded import Maker, cases, pick

AXES = (np.array([1.0, 2.0, 8.0]), np.array([0.0, 16.0, 64.0]))


def bilinear(n: NDArray[np.float64], context: NDArray[np.float64]) -> NDArray[np.float64]:
    return 3.0 + 0.5 * n + 0.25 * context + 0.125 * n * context


def between(low: float, high: float) -> Maker:
    """Make a number between two, most often any, at times a whole one or an end."""
    return lambda rng: rng.choice(
        [low, high, float(rng.randint(int(low), int(high))), *(rng.uniform(low, high) for _ in range(3))]
    )


def grids(seed: random.Random) -> Grid:
    """Make a grid of two axes whose times never fall along either, some steps of them flat."""
    steps = seed.randint(2, 5), seed.randint(2, 5)
    rng = np.random.default_rng(seed.getrandbits(64))
    axes = tuple(rng.choice([0.0, 1.0]) + np.cumsum([0, *rng.uniform(0.5, 20, n)]) for n in steps)
    rises = rng.uniform(0, 10, [len(axis) for axis in axes]) * (rng.random([len(axis) for axis in axes]) < 0.7)
    rises[0][0] += 0.1
    return Grid(axes, np.cumsum(np.cumsum(rises, axis=0), axis=1))


@cases(100, between(1, 8), between(0, 64))
def test_a_product_of_the_axes_is_exact_between_points(n: float, context: float) -> None:
    grid = Grid(AXES, bilinear(AXES[0][:, None], AXES[1][None, :]))
    assert float(grid(n, context)) == pytest.approx(float(bilinear(np.float64(n), np.float64(context))))


@cases(150, grids, between(0, 200), between(0, 200), between(0, 200), pick(0, 1))
def test_a_grid_that_rises_rises_everywhere(grid: Grid, x: float, y: float, more: float, axis: int) -> None:
    at = x, y
    further = [x, y]
    further[axis] += more
    assert float(grid(*further)) >= float(grid(*at)) * (1 - 1e-12)


@cases(100, grids)
def test_a_grid_gives_its_points_back(grid: Grid) -> None:
    a, b = np.meshgrid(*grid.axes, indexing="ij")
    np.testing.assert_allclose(grid(a, b), grid.time)


@cases(100, grids, between(1, 50))
def test_past_the_last_point_times_grow_with_the_quantity(grid: Grid, times: float) -> None:
    last = [float(a[-1]) for a in grid.axes]
    assert float(grid(last[0] * times, last[1])) == pytest.approx(times * grid.time[-1, -1])
    assert float(grid(last[0], last[1] * times)) == pytest.approx(times * grid.time[-1, -1])


def test_a_batch_takes_digit_by_digit_what_its_points_take() -> None:
    rng = np.random.default_rng(5)
    axes = (np.array([3.0]), np.array([0.0, 1.0, 7.0]), np.array([2.0, 2.5, 90.0]), np.array([0.0, 16.0, 64.0]))
    grid = Grid(axes, rng.uniform(1, 9, [len(axis) for axis in axes]))
    points = rng.uniform(0, 1, (4, 2000)) * [[9], [20], [200], [100]]
    points[:, ::2] = np.round(points[:, ::2])
    assert grid(*points).tolist() == [float(grid(*point)) for point in points.T]


def test_what_was_not_measured_grows_with_the_last_axis() -> None:
    grid = Grid(AXES, np.array([[1.0, 2.0, 5.0], [1.0, 2.0, np.nan], [1.0, np.nan, np.nan]]))
    assert grid.time.tolist() == [[1, 2, 5], [1, 2, 8], [1, 16, 64]]


@pytest.mark.parametrize(
    "time",
    [np.ones((2, 3)), np.zeros((3, 3)), np.array([[np.nan, 1, 1], [1, 1, 1], [1, 1, 1]])],
    ids=["shape", "not positive", "a row without a first point"],
)
def test_a_grid_refuses_times_that_do_not_fit(time: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match=r"grid|times"):
        Grid(AXES, time)


def test_a_grid_refuses_axes_that_do_not_rise() -> None:
    with pytest.raises(ValueError, match="rise"):
        Grid((np.array([2.0, 1.0]), np.array([1.0, 2.0])), np.ones((2, 2)))


@cases(100, between(0, 100))
def test_a_curve_is_linear_between_points_flat_before_and_proportional_after(x: float) -> None:
    curve = Curve(np.array([2.0, 4.0, 10.0]), np.array([1.0, 3.0, 6.0]))
    expected = 1.0 if x < 2 else 1 + (x - 2) if x < 4 else 3 + (x - 4) / 2 if x < 10 else 0.6 * x
    assert float(curve(x)) == pytest.approx(expected)


@pytest.mark.parametrize("x", [[], [0.0], [2.0, 2.0], [3.0, 1.0]])
def test_a_curve_needs_points_that_rise(x: list[float]) -> None:
    with pytest.raises(ValueError, match="points"):
        Curve(np.array(x), np.ones(len(x)))
