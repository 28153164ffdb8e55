"""Bad files: one clear sentence each, the same from reading as from lint.

The kinds are those of issue 2 and of case 10 in the design notes (inference-sim#1301, #1302, #363, #1606).
"""

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.io import FORMATS, read_trace, write_trace
from traces.lint import lint_trace
from traces.schema import Segments, Trace, TraceError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = "2023-11-16 18:17:03.9799600,4808,10\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BURST = "Timestamp,Request tokens,Response tokens\n"
MOON = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [1, 2]}\n'
QWEN = (
    '{"chat_id": %s, "parent_chat_id": %s, "timestamp": 1, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n'
)
RAG = '{"timestamp": "1", "input_length": 3, "output_length": 1, "session_id": "s", "hash_ids": %s}\n'


def moon(**changes: object) -> str:
    row = json.loads(MOON) | changes
    return json.dumps({k: v for k, v in row.items() if v is not ...}) + "\n"


CASES = {
    # Lengths.
    "input 0": (
        AZURE + GOOD + GOOD.replace("4808", "0"),
        "line 3, column ContextTokens: '0' is not a whole number of at least 1",
    ),
    "negative length": (
        VIDUR + "0,-1,5\n",
        "line 2, column num_prefill_tokens: '-1' is not a whole number of at least 1",
    ),
    "output 0": (VIDUR + "0,5,0\n", "line 2, column num_decode_tokens: '0' is not a whole number of at least 1"),
    "abc": (VIDUR + "0,abc,5\n", "line 2, column num_prefill_tokens: 'abc' is not a whole number of at least 1"),
    "NaN length": (VIDUR + "0,NaN,5\n", "line 2, column num_prefill_tokens: 'NaN' is not a whole number of at least 1"),
    "fraction": (VIDUR + "0,12.5,5\n", "line 2, column num_prefill_tokens: '12.5' is not a whole number of at least 1"),
    "huge": (
        VIDUR + f"0,{2**31 + 1},5\n",
        "line 2, column num_prefill_tokens: '2147483649' is larger than 2,147,483,648, the most that is allowed",
    ),
    "very huge": (
        VIDUR + f"0,{10**30},5\n",
        f"line 2, column num_prefill_tokens: '{10**30}' is larger than 2,147,483,648, the most that is allowed",
    ),
    "no length": (
        VIDUR + "0,,5\n",
        "line 2, column num_prefill_tokens: the value is missing; a whole number of at least 1 is needed",
    ),
    "json length 0": (
        MOON + moon(output_length=0),
        "line 2, column output_length: 0 is not a whole number of at least 1",
    ),
    "json NaN length": (
        MOON + moon(input_length=float("nan")),
        "line 2, column input_length: NaN is not a whole number of at least 1",
    ),
    "json null length": (
        MOON + moon(input_length=None),
        "line 2, column input_length: the value is missing; a whole number of at least 1 is needed",
    ),
    "json no length": (
        MOON + moon(input_length=...),
        "line 2, column input_length: the key is missing; a whole number of at least 1 is needed",
    ),
    "json true": (
        MOON + moon(input_length=True),
        "line 2, column input_length: true is not a whole number of at least 1",
    ),
    "json list": (
        MOON + moon(input_length=[5]),
        "line 2, column input_length: [5] is not a whole number of at least 1",
    ),
    "json huge": (
        MOON + moon(output_length=10**400),
        f"line 2, column output_length: {'1' + '0' * 36}... is larger than 2,147,483,648, the most that is allowed",
    ),
    # Times.
    "no date": (
        AZURE + "yesterday,5,5\n",
        "line 2, column TIMESTAMP: 'yesterday' is not a date and time like 2023-11-16 18:17:03.9799600, "
        "from 1970 to 2115",
    ),
    "empty date": (
        AZURE + ",5,5\n",
        "line 2, column TIMESTAMP: the value is missing; a date and time like 2023-11-16 18:17:03.9799600, "
        "from 1970 to 2115 is needed",
    ),
    "no time": (VIDUR + "soon,5,5\n", "line 2, column arrived_at: 'soon' is not a number of seconds"),
    "NaN time": (VIDUR + "nan,5,5\n", "line 2, column arrived_at: 'nan' is not a number of seconds"),
    "infinite time": (VIDUR + "inf,5,5\n", "line 2, column arrived_at: 'inf' is not a number of seconds"),
    "empty time": (VIDUR + ",5,5\n", "line 2, column arrived_at: the value is missing; a number of seconds is needed"),
    "arrival -5": (VIDUR + "-5,5,5\n", "line 2, column arrived_at: '-5' is negative; times start at 0"),
    "time too large": (VIDUR + "1e15,5,5\n", "line 2, column arrived_at: '1e15' is too large for a number of seconds"),
    "some epoch ms": (
        VIDUR + "1,5,5\n1700000000000,5,5\n",
        "line 3, column arrived_at: '1700000000000' is too large for a number of seconds "
        "(milliseconds since 1970? Other rows are in seconds)",
    ),
    "json negative time": (MOON + moon(timestamp=-1), "line 2, column timestamp: -1 is negative; times start at 0"),
    "json NaN time": (
        MOON + moon(timestamp=float("nan")),
        "line 2, column timestamp: NaN is not a number of milliseconds",
    ),
    "json infinite time": (
        MOON + moon(timestamp=float("inf")),
        "line 2, column timestamp: infinity is not a number of milliseconds",
    ),
    "json time true": (MOON + moon(timestamp=True), "line 2, column timestamp: true is not a number of milliseconds"),
    "json microseconds": (
        MOON + moon(timestamp=17 * 10**14),
        "line 2, column timestamp: 1700000000000000 is too large for a number of milliseconds",
    ),
    # Content and names.
    "too many ids": (
        MOON + moon(hash_ids=[1, 2, 3]),
        "line 2, column hash_ids: there are 3 hash ids, but 513 tokens make 2 blocks of 512",
    ),
    "too few ids": (
        MOON + moon(input_length=2000),
        "line 2, column hash_ids: there are 2 hash ids, but 2,000 tokens make 4 blocks of 512",
    ),
    "no id list": (MOON + moon(hash_ids=5), "line 2, column hash_ids: 5 is not a list of whole numbers"),
    "ids of text": (
        MOON + moon(hash_ids=["a", "b"]),
        'line 2, column hash_ids: ["a", "b"] is not a list of whole numbers',
    ),
    "no ids": (MOON + moon(hash_ids=...), "line 2, column hash_ids: the key is missing"),
    "unknown component": (
        RAG % '{"sys_prompt": [1]}' + RAG % '{"prompt": [1]}',
        'line 2, column hash_ids: {"prompt": [1]} is not an object of lists with the keys '
        "sys_prompt, passages_ids, history, web_search, user_input",
    ),
    "more components than tokens": (
        RAG % '{"sys_prompt": [1, 2, 3, 4]}',
        "line 1, column hash_ids: there are 4 content ids for a prompt of 3 tokens",
    ),
    "half a character": (
        RAG.replace('"s"', r'"\ud800"') % '{"sys_prompt": [1]}',
        r"line 1, column session_id: '\ud800' is not a name",
    ),
    "one id twice": (
        QWEN % (5, -1) + QWEN % (6, -1) + QWEN % (5, -1),
        "line 3, column chat_id: 5 is the id of the request on line 1 already",
    ),
    "parents in a circle": (
        QWEN % (5, 6) + QWEN % (6, 5),
        "line 1, column parent_chat_id: the parents of chat 5 go round in a circle",
    ),
    "a parent that is none": (
        QWEN % (5, -7),
        "line 1, column parent_chat_id: the parent must be a chat_id, or -1 for none",
    ),
    # Columns.
    "only a header": (AZURE, "the file has a header but no requests"),
    "unknown columns": (
        "time,tokens_in,tokens_out\n1,2,3\n",
        "line 1: no trace format has the columns time, tokens_in, tokens_out; the nearest is azure, which needs "
        "TIMESTAMP, ContextTokens, GeneratedTokens (missing: TIMESTAMP, ContextTokens, GeneratedTokens)",
    ),
    "wrong case": (
        AZURE.lower() + GOOD,
        "line 1: no trace format has the columns timestamp, contexttokens, generatedtokens; the nearest is azure, "
        "which needs TIMESTAMP, ContextTokens, GeneratedTokens (missing: TIMESTAMP, ContextTokens, GeneratedTokens)",
    ),
    "a misspelt arrival": (
        VIDUR.replace("arrived_at", "arived_at") + "0,5,5\n",
        "line 1: no trace format has the columns arived_at, num_prefill_tokens, num_decode_tokens; the nearest is "
        "sharegpt, which needs num_prefill_tokens, num_decode_tokens and allows num_total_tokens, pd_ratio",
    ),
    "a misspelt optional column": (
        MOON.replace("hash_ids", "hash_id"),
        "line 1: format timed-trace has no column hash_id; did you mean hash_ids?",
    ),
    "json columns": (
        '{"prompt": "hi", "max_tokens": 5}\n',
        "line 1: no trace format has the columns prompt, max_tokens; the nearest is timed-trace, which needs "
        "timestamp, input_length, output_length (missing: timestamp, input_length, output_length)",
    ),
    "a column twice": (
        "arrived_at,arrived_at\n",
        "line 1, column arrived_at: the header has the column arrived_at twice",
    ),
    "a column without a name": ("arrived_at,\n", "line 1: column 2 has no name in the header"),
    "too few values": (
        VIDUR + "0,5,5\n1,5\n",
        "line 3: there are 2 values, the header names 3 columns (arrived_at, num_prefill_tokens, num_decode_tokens)",
    ),
    "too many values": (
        VIDUR + "0,5,5,\n",
        "line 2: there are 4 values, the header names 3 columns (arrived_at, num_prefill_tokens, num_decode_tokens)",
    ),
    "an open quote": (VIDUR + '0,5,5\n0,"5,5\n', "line 3: the quotes do not match (unexpected end of data)"),
    "all failed": (
        BURST + "1,5,0\n2,6,0\n",
        "column Response tokens: every request has 0 response tokens, so all of them failed",
    ),
    # JSON.
    "truncated": (MOON + MOON[:50], "line 2: the JSON object breaks off in the middle; the file is probably cut off"),
    "broken in the middle": (
        MOON + MOON[:50] + "\n" + MOON,
        "line 2: the line is not JSON (Unterminated string starting at character 39)",
    ),
    "a JSON object": (
        '{\n "requests": [1]\n}\n',
        "the file is one JSON object; one JSON object per line is needed, one for each request",
    ),
    "a JSON object on one line": (
        '{"requests": [{"input_length": 5}]}',
        "the file is one JSON object; one JSON object per line is needed, one for each request",
    ),
    "a JSON array": (
        "[" + MOON.strip() + "]",
        "the file is one JSON array; one JSON object per line is needed, one for each request",
    ),
    "a key per line": (
        "".join(f'{{"key-{i}": {i}}}\n' for i in range(1_001)),
        "the objects have 1,001 different keys; requests share a few",
    ),
    "a number": (MOON + "5\n", "line 2: the line holds a number; a JSON object is needed"),
    "deep nesting": (
        MOON + "[" * 100_000,
        "line 2: the line is not JSON that can be read (maximum recursion depth exceeded",
    ),
    # No text.
    "empty": ("", "the file is empty; a trace has at least one request"),
    "blank": ("\n \n\r\n", "the file is empty; a trace has at least one request"),
    "binary": (
        AZURE.encode() + b"\0\1\2",
        "line 2: the file is binary (it has zero bytes); a trace is CSV, JSON lines or Parquet",
    ),
    "latin-1": (
        AZURE.encode() + b"caf\xe9,1,1\n",
        "line 2: byte 0xe9 is not UTF-8 text; a trace is CSV, JSON lines or Parquet",
    ),
    "utf-16": (AZURE.encode("utf-16"), "the file is UTF-16 text, which is not read; save it as UTF-8"),
    "gzip": (
        gzip.compress(AZURE.encode()),
        "the file is compressed with gzip, which is not read; unpack it first (gunzip)",
    ),
    "cut off parquet": (b"PAR1" + b"\0" * 40, "the Parquet file is damaged ("),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_names_file_line_and_column(tmp_path: Path, case: str) -> None:
    content, expected = CASES[case]
    path = tmp_path / "trace.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    block_size = 512 if "input_length" in str(content) and "chat_id" not in str(content) else None
    with pytest.raises(TraceError) as error:
        read_trace(path, block_size=block_size)
    place = ", " if expected.startswith(("line", "column")) else ": "
    assert str(error.value).startswith(f"{path}{place}{expected}")
    assert "\n" not in str(error.value)
    report = lint_trace(path, block_size=block_size)
    assert not report.ok
    assert str(error.value) in [p.sentence(str(path)) for p in report.problems]


def test_unsorted_rows_are_sorted_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VIDUR + "3,1,1\n1,2,1\n2,3,1\n0,4,1\n")
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [4, 2, 3, 1]
    assert trace.arrival_ns.tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert trace.warnings == (
        f"{path}, line 3, column arrived_at: 2 requests arrive before the one above; "
        "the trace is sorted by arrival, ties in file order",
    )
    assert lint_trace(path).ok


def test_epoch_milliseconds_among_seconds_are_recognised_and_rebased(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(BURST + "1700000000123,5,5\n1700000001500.25,5,5\n")
    trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [0, 1_377_250_000]
    assert trace.warnings == (
        f"{path}, line 2, column Timestamp: times are taken as milliseconds since 1970, not as seconds",
    )


def test_time_zero_and_epoch_seconds_need_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for times, expected in (("0", "0.5"), [0, 5 * 10**8]), (("1700000000.1", "1700000000.100000001"), [0, 1]):
        path.write_text(BURST + "".join(f"{t},5,5\n" for t in times))
        trace = read_trace(path)
        assert trace.arrival_ns.tolist() == expected
        assert trace.warnings == ()


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


def test_blank_lines_in_the_middle_are_skipped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for text in (VIDUR + "0,5,5\n\n \n1,abc,5\n", MOON + "\n \n" + moon(input_length="abc")):
        path.write_text(text)
        report = lint_trace(path, block_size=512)
        assert [p.message for p in report.problems if p.severity == "warning"] == ["2 blank lines are skipped"]
        lines = [p.line for p in report.problems if p.severity == "error"]
        assert lines == [5 if text.startswith("arrived_at") else 4]


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens,colour\n0,5,5,red\n")
    assert read_trace(path).warnings == (
        f"{path}, line 1: colour is a column that format vidur does not have; not read",
    )


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


@pytest.fixture
def full() -> Trace:
    """A trace with every column."""
    return Trace(
        np.array([0, 5]),
        np.array([3, 4]),
        np.array([1, 1]),
        segments=Segments(np.array([0, 2, 3]), np.array([1, 2, 1]), np.array([1, 2, 4])),
        session=np.array(["a", None], dtype=object),
        tenant=np.array(["x", "y"], dtype=object),
        slo_ttft_ns=np.array([-1, 9]),
        slo_tpot_ns=np.array([8, 9]),
        id=np.array([10, 11]),
        row=np.array([1, 0]),
    )


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (
            "arrival_ns",
            [0, None],
            "row 2, column arrival_ns: the value is missing; a whole number of at least 0 is needed",
        ),
        ("arrival_ns", [-1, 0], "row 1, column arrival_ns: -1 is not a whole number of at least 0"),
        ("arrival_ns", [0.0, float("nan")], "row 2, column arrival_ns: NaN is not a whole number of at least 0"),
        ("prompt_tokens", ["3", "x"], "row 2, column prompt_tokens: 'x' is not a whole number of at least 1"),
        ("slo_ttft_ns", [None, 0], "row 2, column slo_ttft_ns: 0 is not a whole number of at least 1"),
        ("id", [7, 7], "row 2, column id: 7 is the id of the request on row 1 already"),
        ("id", ["a", None], "row 2, column id: the id is missing"),
        ("session", [1.5, 2.0], "row 1, column session: 1.5 is not a name"),
        ("segment_ids", [[1, 2], None], "row 2, column segment_ids: the list is missing"),
        ("segment_ids", [[1, 2], []], "row 2, column segment_tokens: there are not as many tokens as ids"),
        ("segment_tokens", [[1, 2], [0]], "row 2, column segment_tokens: a segment needs at least 1 token"),
        ("segment_tokens", [[1, 3], [4]], "row 1, column segment_tokens: the segments hold 4 tokens, the prompt has 3"),
        (
            "segment_tokens",
            [1, 2],
            "column segment_tokens: the column holds int64; lists of integers without nulls are needed",
        ),
        ("segment_tokens", None, "column segment_tokens: the column is missing; segments need ids and tokens"),
        ("prompt_tokens", None, "no trace format has the columns arrival_ns, output_tokens, "),
    ],
)
def test_parquet_columns_are_checked(tmp_path: Path, full: Trace, column: str, values: list, expected: str) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full, path)
    table = pa.parquet.read_table(path)
    at = table.column_names.index(column)
    table = table.remove_column(at) if values is None else table.set_column(at, column, pa.array(values))
    pa.parquet.write_table(table, path)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}{', ' if expected[:3] in ('row', 'col') else ': '}{expected}")


def test_parquet_of_another_program_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"arrival_ns": [9, 4], "prompt_tokens": [3, 4], "output_tokens": [1, 2]}
    pa.parquet.write_table(pa.table({k: pa.array(v, pa.int32()) for k, v in columns.items()}), path)
    trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [4, 9]
    assert trace.prompt_tokens.dtype == np.int64
    assert trace.name == "t"
    assert len(trace.warnings) == 1
    assert trace.warnings[0].startswith(f"{path}, row 2, column arrival_ns: 1 request arrives before the one above")


def test_a_later_version_of_parquet_is_refused(tmp_path: Path, full: Trace) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full, path)
    table = pa.parquet.read_table(path)
    note = {b"prefillsim.trace": b'{"name": "t", "version": 99}'}
    pa.parquet.write_table(table.replace_schema_metadata(note), path)
    with pytest.raises(TraceError, match="has version 99 of the trace format; this program reads version 1"):
        read_trace(path)


SEEDS = sorted((Path(__file__).parents[1] / "data").iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("fuzz")


def verdict(path: Path, block_size: int | None) -> None:
    """Reading gives a valid trace or a :class:`TraceError`, and lint agrees which."""
    report = lint_trace(path, block_size=block_size)
    if not report.ok:
        with pytest.raises(TraceError) as error:
            read_trace(path, block_size=block_size)
        first = next(p for p in report.problems if p.severity == "error")
        assert str(error.value) == first.sentence(str(path))
    else:
        trace = read_trace(path, block_size=block_size)
        assert report.format in FORMATS
        assert 1 <= len(trace) <= report.rows
        assert trace.arrival_ns[0] == 0
        assert [p.sentence(str(path)) for p in report.problems] == sorted(
            trace.warnings, key=[p.sentence(str(path)) for p in report.problems].index
        )


@settings(deadline=None, max_examples=200)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 12),
            st.sampled_from(
                ["", ",", '"', "\n", "\n\n", "-1", "0", "NaN", "1e3", "null", "{", "]", "é", "\0", " ", "-", "9" * 25]
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    block_size=st.sampled_from([None, 16, 512]),
)
def test_damaged_files_are_read_or_refused_and_lint_agrees(
    folder: Path, seed: Path, edits: list[tuple[float, int, str]], block_size: int | None
) -> None:
    text = seed.read_text()
    for where, length, patch in edits:
        at = round(where * len(text))
        text = text[:at] + patch + text[at + length :]
    path = folder / "damaged"
    path.write_text(text)
    verdict(path, block_size)


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_anything_at_all_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "anything"
    path.write_bytes(content)
    verdict(path, None)


@settings(deadline=None, max_examples=40)
@given(cut=st.floats(0, 1))
def test_a_cut_off_parquet_is_refused(folder: Path, cut: float) -> None:
    path = folder / "whole.parquet"
    write_trace(Trace(np.array([0, 5]), np.array([3, 4]), np.array([1, 1])), path)
    content = path.read_bytes()
    path.write_bytes(content[: round(cut * (len(content) - 1))])
    with pytest.raises(TraceError):
        read_trace(path)


def test_no_more_is_left_behind(data: Path, tmp_path: Path) -> None:
    shutil.copy(data / "vidur.csv", tmp_path)
    read_trace(tmp_path / "vidur.csv")
    lint_trace(tmp_path / "vidur.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["vidur.csv"]


def test_a_seam_of_two_recordings_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    week = [f"{i},5,5\n" for i in range(100)]
    path.write_text(VIDUR + "".join(week + week))
    seam = "on line 102 times fall by 99 s, as where two recordings were joined: sorting lays one over the other"
    assert read_trace(path).warnings[0].endswith(f"sorted by arrival, ties in file order; {seam}")
    path.write_text(VIDUR + "".join(week[1:] + week))
    assert read_trace(path).warnings[0].endswith("ties in file order")
