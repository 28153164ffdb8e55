from __future__ import annotations

import numpy as np

from gpu_runner.profiling.bench import Sample
from gpu_runner.profiling.grid import Cell
from gpu_runner.profiling.journal import CHECK, Entry
from gpu_runner.profiling.quality import Quality, assess
from tests.seeded import cases, either, pick, whole

BASE = 10_000_000


def entries(cells: int, rounds: int, factor: dict[int, float], noise: float = 0.0, seed: int = 0) -> list[Entry]:
    """Steps whose cells take 10, 20, ... ms, times the factor of the round."""
    rng = np.random.default_rng(seed)
    return [
        Entry(
            Cell(0, 0, 1, c + 1, 0),
            r,
            Sample((), round(BASE * (c + 1) * factor.get(r, 1) * (1 + noise * rng.standard_normal())), None),
        )
        for r in [*range(rounds), CHECK]
        for c in range(cells)
    ]


@cases(100, either(pick(0.3, 1.0, 3.0), lambda rng: rng.uniform(0.3, 3)), whole(1, 20), whole(1, 6))
def test_drift_is_what_the_last_measurement_is_above_the_first(late: float, cells: int, rounds: int) -> None:
    found = assess(entries(cells, rounds, {CHECK: late}))
    assert found.drift is not None
    assert abs(found.drift - (late - 1)) < 1e-6
    assert found.drift_cells == cells
    assert bool([n for n in found.notes(1) if "drifted" in n]) == (abs(found.drift) > 0.05)


def test_a_slow_round_is_seen_as_one() -> None:
    found = assess(entries(12, 5, {3: 1.2}))
    assert found.rounds == (1, 1, 1, 1.2, 1)
    assert found.far_off == 0
    assert assess(entries(12, 5, {3: 2.0})).far_off == 12


def test_noise_that_looks_like_drift_is_not_called_so() -> None:
    called = [any("drifted" in n for n in assess(entries(9, 5, {}, 0.2, seed)).notes(1)) for seed in range(100)]
    assert sum(called) < 15
    moved = [any("drifted" in n for n in assess(entries(20, 5, {CHECK: 1.3}, 0.05, s)).notes(1)) for s in range(100)]
    assert all(moved)


def test_repeats_that_spread_are_told() -> None:
    assert any("spread by" in n for n in assess(entries(20, 5, {}, 0.3)).notes(1))
    assert not assess(entries(20, 5, {}, 0.02)).notes(1)


def test_nothing_measured_says_nothing() -> None:
    found = assess([])
    assert found == Quality(None, 0, None, None, 0, ())
    assert found.notes(0) == []
