"""Reading costs little more than what nobody can avoid, measured in the same run."""

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.benchmarks.bare import Bench
from traces.io import read_trace

pytestmark = pytest.mark.benchmarks


def seconds(action: Callable[[], object]) -> float:
    """The best of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def test_csv_is_read_faster_than_a_loop_over_its_rows(tmp_path: Path, bench: Bench) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i}.25,{i % 4000 + 1},64\n" for i in range(300_000))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)

    def loop() -> list[tuple[float, int, int]]:
        with path.open() as file:
            return [(float(a), int(p), int(o)) for a, p, o in list(csv.reader(file))[1:]]

    ours, rows_alone, pandas = seconds(lambda: read_trace(path)), seconds(loop), seconds(lambda: pd.read_csv(path))
    size = path.stat().st_size / 1e6
    bench("reading CSV", f"{size / ours:.0f} MB/s, pandas alone {size / pandas:.0f}, a loop {size / rows_alone:.0f}")
    assert ours < 1.5 * rows_alone


@pytest.mark.real
def test_json_lines_are_read_in_one_pass(public_path: Callable[[str], Path]) -> None:
    path = public_path("mooncake_conversation.jsonl")

    def parse() -> list[object]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    assert seconds(lambda: read_trace(path)) < 4 * seconds(parse)
