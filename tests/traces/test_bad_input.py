"""Bad files: one clear sentence each, the same from reading as from lint.

The kinds are those of issue 2 and of case 10 in the design notes (inference-sim#1301, #1302, #363, #1606).
"""

import os
from pathlib import Path

import pytest

from tests.traces.bad_cases import CASES, VIDUR
from traces.io import read_trace
from traces.lint import lint_trace
from traces.schema import TraceError


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_names_file_line_and_column(tmp_path: Path, case: str) -> None:
    content, expected = CASES[case]
    path = tmp_path / "trace.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    block_size = 16 if "chat_id" in str(content) else 512
    with pytest.raises(TraceError) as error:
        read_trace(path, block_size=block_size)
    place = ", " if expected.startswith(("line", "column")) else ": "
    assert str(error.value).startswith(f"{path}{place}{expected}")
    assert "\n" not in str(error.value)
    report = lint_trace(path, block_size=block_size)
    assert not report.ok
    assert str(error.value) in [p.sentence(str(path)) for p in report.problems]


@pytest.mark.parametrize(("text", "fits"), [(str(2**31), True), (f"+{2**31}.0", True), (str(2**31 + 1), False)])
def test_the_longest_prompt(tmp_path: Path, text: str, fits: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VIDUR + f"0,{text},1\n")
    assert lint_trace(path).ok == fits


@pytest.mark.parametrize(
    ("text", "kind"), [("4611686017", "s"), ("4611686018", None), ("99999999999", None), ("1e11", "ms")]
)
def test_where_seconds_end_and_milliseconds_begin(tmp_path: Path, text: str, kind: str | None) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VIDUR + f"{text},1,1\n")
    assert lint_trace(path).ok == (kind is not None)
    path.write_text(VIDUR + f"{text},1,1\n{text}.001,1,1\n".replace("1e11.", "100000000000."))
    if kind is not None:
        assert read_trace(path).arrival_ns.tolist() == [0, 10**6 if kind == "s" else 1_000]


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(VIDUR + "0,5,5\n")
    with pytest.raises(TraceError, match=rf"^{tmp_path / 'trce.csv'}: there is no such file; did you mean {path}\?$"):
        read_trace(tmp_path / "trce.csv")
    with pytest.raises(
        TraceError, match=f": there is no such file; the folder {tmp_path / 'no'} does not exist either"
    ):
        read_trace(tmp_path / "no" / "trace.csv")
    with pytest.raises(TraceError, match=f"^{tmp_path}: this is a folder; a trace is one file$"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match=r"^/dev/null: this is a device; a trace is a file$"):
        read_trace("/dev/null")
    with pytest.raises(TraceError, match="File name too long"):
        read_trace(tmp_path / ("x" * 300))
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read anything
        monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(TraceError, match=rf"^{path}: the file may not be read \(permission denied\)$"):
        read_trace(path)


def test_arguments_are_checked(data: Path) -> None:
    path = data / "vidur.csv"
    with pytest.raises(
        TraceError, match=r"^unknown trace format azur; did you mean azure\? \(formats: azure, mooncake, "
    ):
        read_trace(path, fmt="azur")
    with pytest.raises(TraceError, match=f"^{path}: the file is CSV, format mooncake is JSON lines$"):
        read_trace(path, fmt="mooncake")
    with pytest.raises(
        TraceError,
        match=f"^{path}, line 1: format azure needs TIMESTAMP, ContextTokens, GeneratedTokens; "
        "missing: TIMESTAMP, .*; found: arrived_at, ",
    ):
        read_trace(path, fmt="azure")
    with pytest.raises(TraceError, match="a block has at least 1 token, not -1"):
        read_trace(path, block_size=-1)
