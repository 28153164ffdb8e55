"""Every notebook runs from top to bottom."""

import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(notebook))
    assert capsys.readouterr().out
    assert names


def test_the_tour_says_what_it_shows() -> None:
    """Its sentences about SLOWeave hold for the numbers that it prints."""
    names = runpy.run_path(str(NOTEBOOKS[[p.stem for p in NOTEBOOKS].index("tour")]))
    steps, decoding = names["steps"], names["decoding"]
    assert steps["duration_ns"][decoding].max() <= 25_000_000
    largest = [
        steps["prefill_tokens"][(steps["n_decode"] >= low) & (steps["n_decode"] < low + 40)].max()
        for low in (1, 40, 80)
    ]
    assert largest == sorted(largest, reverse=True)
