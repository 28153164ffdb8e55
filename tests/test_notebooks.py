"""Every notebook runs from top to bottom; what it claims, it asserts."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from policies import registry

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.py"))


@pytest.fixture(autouse=True)
def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a notebook registers is gone afterwards."""
    monkeypatch.setattr(registry, "_parts", {kind: registry.parts(kind) for kind in registry.KINDS})


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(notebook))
    assert capsys.readouterr().out
    if isinstance(names.get("figure"), Figure):
        names["figure"].canvas.draw()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_can_be_opened(notebook: Path) -> None:
    """As jupytext reads it: a heading first, and no cell without content."""
    head, *cells = notebook.read_text().split("\n# %%")
    assert "formats: py:percent" in head
    assert cells[0].startswith(" [markdown]\n# # ")
    assert all(cell.partition("\n")[2].strip() for cell in cells)
    assert all(line.startswith("#") for c in cells if c.startswith(" [markdown]") for line in c.split("\n")[1:] if line)


def test_the_tour_says_what_it_shows() -> None:
    """Its sentences about SLOWeave hold for the numbers that it prints."""
    names: dict[str, Any] = runpy.run_path(str(NOTEBOOKS[[p.stem for p in NOTEBOOKS].index("tour")]))
    steps, decoding = names["steps"], names["decoding"]
    assert steps["duration_ns"][decoding].max() <= 25_000_000
    largest = [
        steps["prefill_tokens"][(steps["n_decode"] >= low) & (steps["n_decode"] < low + 40)].max()
        for low in (1, 40, 80)
    ]
    assert largest == sorted(largest, reverse=True)
