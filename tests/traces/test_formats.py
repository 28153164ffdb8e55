"""Each public format, from a tiny file typed by hand."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from traces.io import FORMATS, read_trace, write_trace
from traces.lint import lint_trace
from traces.schema import TraceError

MS = 1_000_000


def content(trace, row: int) -> list[tuple[int, int]]:
    return trace.segments.of(row)


def test_azure_2023_is_exact_to_100_ns(data: Path) -> None:
    trace = read_trace(data / "azure_2023.csv")
    assert trace.arrival_ns.tolist() == [0, 52_000_000, 52_000_100]
    assert trace.prompt_tokens.tolist() == [4808, 3180, 110]
    assert trace.output_tokens.tolist() == [10, 8, 27]
    assert trace.segments is None
    assert trace.warnings == ()
    assert trace.name == "azure_2023"


def test_azure_2024_has_time_zones_and_whole_seconds(data: Path) -> None:
    trace = read_trace(data / "azure_2024.csv")
    assert trace.arrival_ns.tolist() == [0, 1_000, 17_336_000]


def test_mooncake_has_a_segment_per_512_tokens(data: Path) -> None:
    trace = read_trace(data / "mooncake.jsonl", fmt="mooncake")
    assert trace.arrival_ns.tolist() == [0, 0, 3543 * MS]
    assert content(trace, 0) == [(0, 512), (1, 512), (2, 76)]
    assert content(trace, 1) == [(0, 512), (1, 512)]
    assert content(trace, 2) == [(0, 512), (3, 512), (4, 512), (5, 1)]
    assert trace.warnings == ()


def test_a_mooncake_file_needs_no_block_size_where_its_lengths_leave_one(data: Path) -> None:
    # 1,024 tokens in 2 ids and 1,537 tokens in 4 leave exactly 512.
    assert read_trace(data / "mooncake.jsonl") == read_trace(data / "mooncake.jsonl", fmt="mooncake")
    assert lint_trace(data / "mooncake.jsonl").format == "mooncake"


def test_timed_trace_infers_16_tokens(data: Path) -> None:
    # 32 tokens in 2 ids and 33 in 3 leave exactly 16.
    trace = read_trace(data / "timed_trace.jsonl")
    assert trace.warnings == ()
    assert trace.arrival_ns.tolist() == [0, 1_250_000, 999_750_000]
    assert content(trace, 0) == [(7, 16), (8, 16), (9, 8)]
    assert content(trace, 1) == [(7, 16), (8, 16), (10, 1)]
    assert content(trace, 2) == [(7, 16), (11, 16)]
    assert lint_trace(data / "timed_trace.jsonl").format == "timed-trace"


def test_the_users_block_size_wins(data: Path) -> None:
    with pytest.raises(
        TraceError, match="line 1, column hash_ids: there are 3 hash ids, but 40 tokens make 2 blocks of 20"
    ):
        read_trace(data / "timed_trace.jsonl", block_size=20)


@pytest.mark.parametrize(("length", "ids", "size"), [(600, 2, 512), (40, 3, 16), (300, 2, 256)])
def test_an_uncertain_block_size_is_warned_of(tmp_path: Path, length: int, ids: int, size: int) -> None:
    path = tmp_path / "t.jsonl"
    row = f'{{"timestamp": 0, "input_length": {length}, "output_length": 1, "hash_ids": {list(range(ids))}}}\n'
    path.write_text(row)
    trace = read_trace(path)
    assert content(trace, 0)[0] == (0, size)
    assert len(trace.warnings) == 1
    assert f"each hash id is taken for {size} tokens, though anything from" in trace.warnings[0]
    assert "give the block size to be sure" in trace.warnings[0]


def test_a_block_size_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3000, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(TraceError, match=r"anything from 3,000 to 2,147,483,648 tokens .* give the block size"):
        read_trace(path)


def test_a_partial_block_without_an_id_is_content_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": 0, "input_length": %d, "output_length": 1, "hash_ids": %s}\n'
    path.write_text(row % (40, [5, 6]) + row % (40, [5, 6]) + row % (7, []))
    trace = read_trace(path, block_size=16)
    assert content(trace, 0) == [(5, 16), (6, 16), (7, 8)]
    assert content(trace, 1) == [(5, 16), (6, 16), (8, 8)]
    assert content(trace, 2) == [(9, 7)]
    assert trace.warnings == (
        f"{path}, line 1, column hash_ids: 3 prompts have no hash id for the partial last block, "
        "which is taken as content of its own",
    )


def test_hash_ids_may_have_64_bits_and_more(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": 0, "input_length": 32, "output_length": 1, "hash_ids": %s}\n'
    path.write_text(row % [2**64 - 1, 3] + row % [2**64 - 1, -4] + row % [3, -4])
    assert [[i for i, _ in content(read_trace(path, block_size=16), r)] for r in range(3)] == [[0, 1], [0, 2], [1, 2]]


def test_a_file_without_hash_ids_is_read_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 32, "output_length": 1}\n')
    trace = read_trace(path)
    assert trace.segments is None
    assert trace.warnings == (f"{path}: the file has no hash_ids, so every prompt is taken as unlike every other",)


def test_ragpulse_spreads_lengths_over_components(data: Path) -> None:
    trace = read_trace(data / "ragpulse.jsonl")
    assert trace.arrival_ns.tolist() == [0, 8 * 10**9, 11 * 10**9]
    assert trace.prompt_tokens.tolist() == [100, 5, 11]
    assert trace.session is not None
    assert trace.session.tolist() == ["a", "a", "b"]
    assert content(trace, 0) == [(30, 25), (31, 25), (7, 25), (50, 25)]
    assert content(trace, 1) == [(52, 5)]
    assert content(trace, 2) == [(30, 3), (31, 3), (40, 3), (51, 2)]
    assert trace.row is not None
    assert trace.row.tolist() == [0, 2, 1]
    assert trace.warnings == (
        f"{data / 'ragpulse.jsonl'}, line 3, column timestamp: 1 request arrives before the one above; "
        "the trace is sorted by arrival, ties in file order",
    )


def test_sharegpt_lengths_have_no_arrivals(data: Path) -> None:
    trace = read_trace(data / "sharegpt.csv")
    assert trace.arrival_ns.tolist() == [0, 0]
    assert trace.prompt_tokens.tolist() == [74, 290]
    assert trace.output_tokens.tolist() == [918, 905]
    assert len(trace.warnings) == 1
    assert "no arrival times; unless --rate is given, all requests arrive at time 0" in trace.warnings[0]


def test_vidur_seconds_are_read_as_they_are_written(data: Path) -> None:
    trace = read_trace(data / "vidur.csv")
    assert trace.arrival_ns.tolist() == [0, 200_000_000, 11_900_000_000]
    assert trace.output_tokens.tolist() == [64, 1, 20]


def test_burstgpt_leaves_failed_requests_out(data: Path) -> None:
    trace = read_trace(data / "burstgpt_v1.csv")
    assert trace.arrival_ns.tolist() == [0, 113 * 10**9]
    assert trace.prompt_tokens.tolist() == [472, 417]
    assert trace.output_tokens.tolist() == [18, 276]
    assert trace.session is None
    assert trace.warnings == (
        f"{data / 'burstgpt_v1.csv'}, line 3, column Response tokens: "
        "1 request has 0 response tokens and failed; left out",
    )


def test_burstgpt_2_names_sessions(data: Path) -> None:
    trace = read_trace(data / "burstgpt_v2.csv")
    assert trace.arrival_ns.tolist() == [0, 39_500_000_000, 112_500_000_000]
    assert trace.prompt_tokens.tolist() == [472, 20, 700]
    assert trace.session is not None
    assert trace.session.tolist() == ["3", None, "3"]
    assert trace.warnings == ()


def test_columns_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Response tokens,Timestamp,Request tokens\n4,9,70\n")
    trace = read_trace(path)
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (70, 4)


def test_qwen_bailian_turns_are_sessions_of_their_root(data: Path) -> None:
    trace = read_trace(data / "qwen_bailian.jsonl")
    assert trace.arrival_ns.tolist() == [0, 136 * MS, 886 * MS, 9386 * MS]
    assert trace.session is not None
    # Chat 7, the parent of 160, is not in the file: it is the oldest that is known.
    assert trace.session.tolist() == ["159", "7", "159", "159"]
    assert trace.ids.tolist() == [159, 160, 161, 162]
    assert content(trace, 0) == [(10, 16), (11, 16), (12, 8)]
    assert content(trace, 2) == [(10, 16), (11, 16), (14, 15)]


@pytest.mark.parametrize("name", [f for f in FORMATS if f not in ("mooncake", "parquet")])
def test_content_tells_the_format_whatever_the_file_is_called(data: Path, tmp_path: Path, name: str) -> None:
    files = {p.stem.removesuffix("_v1").removesuffix("_2023").replace("_", "-"): p for p in data.iterdir()}
    path = tmp_path / "trace.parquet"
    shutil.copy(files[name], path)
    assert lint_trace(path).format == name
    assert read_trace(path) == read_trace(path, fmt=name)


def test_parquet_is_recognised_whatever_the_file_is_called(data: Path, tmp_path: Path) -> None:
    trace = read_trace(data / "ragpulse.jsonl")
    write_trace(trace, tmp_path / "t.csv", fmt="parquet")
    assert read_trace(tmp_path / "t.csv") == trace
    assert lint_trace(tmp_path / "t.csv").format == "parquet"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ["", "newline", "blank", "blanks"])
@pytest.mark.parametrize("name", ["azure_2023.csv", "burstgpt_v2.csv", "mooncake.jsonl", "ragpulse.jsonl"])
def test_line_ends_and_byte_order_marks_change_nothing(
    data: Path, tmp_path: Path, name: str, mark: str, newline: str, end: str
) -> None:
    text = (data / name).read_text().rstrip("\n") + {"": "", "newline": "\n", "blank": "\n\n", "blanks": "\n \n\n"}[end]
    path = tmp_path / name
    path.write_bytes((mark + text.replace("\n", newline)).encode())
    trace, plain = read_trace(path), read_trace(data / name)
    assert trace == plain
    assert len(trace.warnings) == len(plain.warnings)


def test_quoted_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('Timestamp,Model,Request tokens,Response tokens\n"5","a ""b"", c\nd",472,18\n6,x,abc,3\n')
    with pytest.raises(TraceError, match="line 4, column Request tokens"):
        read_trace(path)
    path.write_text('Timestamp,Model,Request tokens,Response tokens\n"5","a ""b"", c\nd",472,18\n')
    assert read_trace(path).prompt_tokens.tolist() == [472]


def test_ties_stay_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rng = np.random.default_rng(3)
    times, prompts = rng.integers(0, 5, 200), np.arange(1, 201)
    lines = [f"{t},{p},1" for t, p in zip(times.tolist(), prompts.tolist(), strict=True)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *lines]))
    trace = read_trace(path)
    expected = sorted(zip((times - times.min()).tolist(), prompts.tolist(), strict=True))
    assert list(zip((trace.arrival_ns // 10**9).tolist(), trace.prompt_tokens.tolist(), strict=True)) == expected
    assert trace.row is not None
    assert (trace.row + 1).tolist() == trace.prompt_tokens.tolist()
