"""What all pictures share: files that are drawn for print, laid out as matplotlib does, and equal byte for byte."""

import io
import struct
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from experiments.plotting import NARROW, draw_table, new_figure, save_figure

ROWS = [{"x": 1, "y": 2.5}, {"x": 2, "y": None}]


def fill(figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    left.plot([0, 1, 2], [0, 4000, 10], "o-", label="one")
    left.set_ylabel("$P_{99}$ of something (ms)\nin two lines")
    right.bar(["a", "a long name"], [3, 1])
    figure.suptitle("Title")
    figure.legend(loc="outside lower center")


def size(png: bytes) -> tuple[int, ...]:
    return struct.unpack(">II", png[16:24])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with new_figure(NARROW, 2.0) as figure:
        fill(figure)
        paths = save_figure(figure, tmp_path_factory.mktemp("saved"), "name", ROWS)
    assert [path.name for path in paths] == ["name.csv", "name.png", "name.pdf"]
    return {path.suffix: path.read_bytes() for path in paths}


def test_a_figure_comes_as_png_pdf_and_its_numbers(saved: dict[str, bytes]) -> None:
    assert saved[".csv"] == b"x,y\n1,2.5\n2,\n"
    assert saved[".png"].startswith(b"\x89PNG")
    assert size(saved[".png"]) == (int(NARROW * 200), 400)
    assert b"matplotlib" not in saved[".png"].lower()
    assert saved[".pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in saved[".pdf"]
    # Type 42, as publishers ask for; not Type 3.
    assert b"/FontFile2" in saved[".pdf"]
    assert b"/Type3" not in saved[".pdf"]


def test_equal_figures_are_equal_files_laid_out_as_matplotlib_does(saved: dict[str, bytes], tmp_path: Path) -> None:
    with new_figure(NARROW, 2.0) as figure:
        fill(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        assert buffer.getvalue() == saved[".png"]
    with new_figure(NARROW, 2.0) as figure:
        fill(figure)
        again = save_figure(figure, tmp_path, "again", ROWS)
    assert {path.suffix: path.read_bytes() for path in again} == saved


def test_a_table_comes_as_png_pdf_and_its_numbers(tmp_path: Path) -> None:
    cells = [["a", "1.5\n± 0.1"], ["b", "differs"]]
    paths = draw_table(["name", "value\n(ms)"], cells, "Title", tmp_path, "table", ROWS)
    assert [path.name for path in paths] == ["table.csv", "table.png", "table.pdf"]
    csv, png, pdf = (path.read_bytes() for path in paths)
    assert csv == b"x,y\n1,2.5\n2,\n"
    assert size(png) == (1380, int((0.5 + 5 * 0.19) * 200))
    assert b"DejaVuSans-Bold" in pdf


@pytest.mark.parametrize("name", ["$x^$", "a$\\frac{$b", "$" * 9, "$5 and $6", "${" * 5 + "$"])
def test_names_are_no_mathematics(name: str, tmp_path: Path) -> None:
    with new_figure(NARROW, 2.0) as figure:
        axis = figure.subplots()
        axis.plot([1, 2], [1, 2], label=name)
        axis.set_title(name)
        axis.legend()
        assert len(save_figure(figure, tmp_path, "name", ROWS)) == 3
