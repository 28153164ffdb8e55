"""The files of measured memory that the figures read, and what writes them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodels.hardware import load_llm
from experiments.prefillonly import measured, table2
from gpu_runner.hybrid import memory_tables
from gpu_runner.hybrid.memory_tables import (
    LENGTHS_FILE,
    PAIRS,
    POINTS,
    TRACE_FILE,
    TRACED_LLM,
    TRACED_MODES,
    TRACED_TOKENS,
    architecture_of,
    csv_text,
    main,
    trace_rows,
)
from gpu_runner.hybrid.mil import MODES, Measured
from tests.hybrid.small import GQA

LLM = load_llm(TRACED_LLM)


def test_the_files_are_of_the_papers_set_ups() -> None:
    assert dict(PAIRS) == table2.SETUPS
    assert measured.measured_lengths().keys() == {(gpu, llm, mode) for gpu, llm in PAIRS for mode in MODES}
    assert (LENGTHS_FILE, TRACE_FILE) == (measured.LENGTHS_FILE, measured.TRACE_FILE)


def test_what_is_on_file_of_whole_prompts_is_what_comes_out_again() -> None:
    on_file = [r for r in measured.figure3_rows() if r["mode"] in ("paged", "discard")]
    again = trace_rows(LLM, TRACED_TOKENS, ("paged", "discard"))
    for old, new in zip(on_file, again, strict=True):
        assert (old["mode"], old["operators"]) == (new["mode"], new["operators"])
        assert (old["low_gib"] * 2**30, old["high_gib"] * 2**30) == (new["low_bytes"], new["high_bytes"])


@pytest.mark.parametrize("mode", TRACED_MODES)
def test_the_peaks_on_file_are_those_of_two_layers_with_the_others_kv(mode: str) -> None:
    own = [r for r in measured.figure3_rows() if r["mode"] == mode]
    assert len(own) == POINTS
    peak = max(r["high_gib"] for r in own) * 2**30
    assert peak == Measured(LLM, architecture_of(LLM)).peak_bytes(mode, TRACED_TOKENS)


def test_a_trace_of_a_small_model() -> None:
    rows = trace_rows(GQA, 300, points=20, chunk=64)
    model = Measured(GQA, chunk=64, layers=GQA.layers)
    for mode in TRACED_MODES:
        assert max(r["high_bytes"] for r in rows if r["mode"] == mode) == model.trace(mode, 300).peak


def test_both_files_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lengths = [{"gpu": "l4", "llm": "m", "mode": "paged", "chunk": 1, "max_input_length": 16}]
    trace = trace_rows(GQA, 100, ("hybrid",), points=5, chunk=16)
    monkeypatch.setattr(memory_tables, "length_rows", lambda: lengths)
    monkeypatch.setattr(memory_tables, "trace_rows", lambda *_: trace)
    assert main(["--out", str(tmp_path)]) == 0
    for name, rows in ((LENGTHS_FILE, lengths), (TRACE_FILE, trace)):
        about, *lines = (tmp_path / name).read_text().splitlines()
        assert about.startswith("# ")
        assert "torch" in about
        assert "python -m gpu_runner.hybrid.memory_tables" in about
        assert list(csv.DictReader(lines)) == [{k: str(v) for k, v in row.items()} for row in rows]


def test_the_files_carry_their_provenance() -> None:
    folder = Path(measured.__file__).parent
    for name in (LENGTHS_FILE, TRACE_FILE):
        about = (folder / name).read_text().splitlines()[0]
        assert about.startswith("# ")
        assert about.split("; ")[-1] == csv_text([{"a": 1}], "x").splitlines()[0].split("; ")[-1]


def test_a_folder_that_is_not_there_is_said_in_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "none")]) == 2
    assert "none is not a folder; --out names one that exists" in capsys.readouterr().err
