"""Telemetry keeps every row that it was told, whole files only, and never gets in the way of the server."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from gpu_runner import segments, telemetry
from gpu_runner.known import Known
from gpu_runner.recorder import Step
from gpu_runner.segments import Segments, open_segments, read_telemetry, runs_of
from gpu_runner.settings import Settings
from gpu_runner.telemetry import Telemetry, open_telemetry
from policies.views import RequestView
from sim.store import StoreError
from tests.seeded import seeds


def a_step(number: int, batch: list[tuple[int, int]] | None = None) -> Step:
    """A step, every value of which tells its number."""
    step = Step(number, 10 * number, number % 7, number % 5, number % 3 == 0, *(number + i for i in range(6)))
    step.predicted, step.slack = (number % 4) * 100, 5 * number - 250
    step.start, step.end, step.kv_blocks = 10 * number + 1, 10 * number + 9, number % 11
    step.batch = [n for n, _ in batch or []], [t for _, t in batch or []]
    return step


def a_request(number: int) -> tuple[str, Known]:
    """A request that has left, some not let in."""
    note = Known(RequestView(number, 5 * number, 100 + number, tenant="t" if number % 2 else None), None, None)
    if number % 3:
        note.started, note.first_token_ns, note.left_ns = number, 6 * number, 7 * number
        note.generated, note.outcome = 9, "finished"
    else:
        note.outcome, note.reason = "rejected", f"because of {number}"
    return f"r{number}", note


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """What is logged as an error by the scheduler."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines(level=logging.ERROR)
    logger = logging.getLogger("vllm.prefillsim")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def parts(kind: str, folder: Path) -> list[int]:
    """Rows per file, of which the names must count up from 1 without a gap."""
    files = sorted(folder.glob(f"{kind}-*"))
    assert [f.name for f in files] == [f"{kind}-{i:06}.parquet" for i in range(1, len(files) + 1)]
    return [rows_of(f, f.stat().st_ino) for f in files]


@cache
def rows_of(file: Path, inode: int) -> int:
    return pq.read_metadata(file).num_rows


def a_batch(rng: random.Random) -> list[tuple[int, int]]:
    return [(rng.randint(0, 99), rng.randint(1, 9)) for _ in range(rng.randint(0, 4))]


@given(seeds)
@hypothesis_settings(deadline=None, max_examples=60)
def test_every_row_is_kept_and_none_is_long_in_memory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    rng = random.Random(seed)
    rows, age, ends = rng.randint(1, 7), rng.randint(1, 9), rng.random() < 0.5
    now = 0.0
    sink = Segments(folder, {}, rows=rows, age_s=age, clock=lambda: now)
    steps: list[Step] = []
    requests: list[tuple[str, Known]] = []
    born: dict[str, list[float]] = {"steps": [], "requests": []}
    for _ in range(rng.choice((rng.randint(0, 3), rng.randint(0, 12)))):
        new = [a_step(len(steps) + i, a_batch(rng)) for i in range(rng.randint(0, 5))]
        gone = [a_request(len(requests) + i) for i in range(rng.randint(0, 5))]
        steps += new
        requests += gone
        born["steps"] += [now] * len(new)
        born["requests"] += [now] * len(gone)
        sink.take(new, gone)
        for kind, times in born.items():
            written = sum(parts(kind, folder))
            assert len(times) - written < rows
            assert all(now - t < age for t in times[written:])
        now += min(rng.randint(0, 9), age)  # so that rows are often exactly as old as they may get
    if ends:
        sink.close()
    kept = read_telemetry(folder)
    assert kept.info["complete"] is ends
    if ends:
        assert (kept.steps.num_rows, kept.requests.num_rows) == (len(steps), len(requests))
    for row, step in zip(kept.steps.to_pylist(), steps, strict=False):
        assert list(row.values()) == [
            step.number,
            step.decided,
            step.start,
            step.end - step.start,
            *step.features,
            step.waiting,
            step.granted,
            step.exception,
            step.predicted or None,
            step.slack if step.predicted else None,
            step.fallback,
            step.kv_blocks,
            *step.batch,
        ]
    for row, (name, note) in zip(kept.requests.to_pylist(), requests, strict=False):
        assert (row["id"], row["request"], row["outcome"]) == (name, note.view.number, note.outcome)
        assert (row["arrival_ns"], row["prompt_tokens"]) == (note.view.arrival_ns, note.view.prompt_tokens)
        let_in = note.outcome == "finished"
        assert row["cached_tokens"] == (note.started if let_in else None)
        assert (row["first_token_ns"], row["left_ns"]) == (
            (note.first_token_ns, note.left_ns) if let_in else (None,) * 2
        )
        assert row["reason"] == (None if let_in else note.reason)
        assert row["tenant"] == note.view.tenant


def test_a_big_batch_fills_a_file_before_many_steps_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ENTRIES", 1000)
    sink = Segments(tmp_path, {})
    sink.take([a_step(i, [(n, 1) for n in range(300)]) for i in range(10)], [])
    assert parts("steps", tmp_path) == [4, 4]


def test_runs_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    settings = Settings(policy="vllm-default", telemetry=str(tmp_path))
    for number in range(3):
        sink = open_segments(settings)
        sink.take([a_step(number)], [])
        sink.close()
    kept = [read_telemetry(run) for run in runs_of(tmp_path)]
    assert [k.steps["step"].to_pylist() for k in kept] == [[0], [1], [2]]
    assert all(k.info["settings"]["policy"] == "vllm-default" and k.info["versions"]["python"] for k in kept)


def test_what_is_no_telemetry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no telemetry"):
        read_telemetry(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "prefillsim run", "version": 1}')
    with pytest.raises(StoreError, match="is not of prefillsim telemetry version 1"):
        read_telemetry(tmp_path)


def test_told_by_one_thread_and_kept_by_another(tmp_path: Path) -> None:
    """Nothing is lost or out of order between the two, however they take turns."""
    teller = Telemetry([Segments(tmp_path, {}, rows=50)], tick_s=0.001)
    for number in range(5000):
        teller.ended(a_step(number))
        if not number % 5:
            teller.left(*a_request(number))
        if not number % 700:
            time.sleep(0.003)
    teller.close()
    teller.close()
    kept = read_telemetry(tmp_path)
    assert kept.steps["step"].to_pylist() == list(range(5000))
    assert kept.requests["request"].to_pylist() == list(range(0, 5000, 5))
    assert kept.info["complete"]
    teller.ended(a_step(1))
    teller.left(*a_request(1))


def test_a_failed_policy_is_written_at_once(tmp_path: Path) -> None:
    teller = Telemetry([Segments(tmp_path, {})], tick_s=1000)
    teller.ended(a_step(0))
    teller.fell_back(ValueError("no more ideas"))
    wait_for(lambda: read_telemetry(tmp_path).info["fallback"] == "ValueError: no more ideas")
    assert read_telemetry(tmp_path).steps.num_rows == 1
    teller.close()


def test_rows_of_a_quiet_server_get_old_too(tmp_path: Path) -> None:
    teller = Telemetry([Segments(tmp_path, {}, age_s=0.05)], tick_s=0.01)
    teller.ended(a_step(0))
    wait_for(lambda: read_telemetry(tmp_path).steps.num_rows == 1)
    teller.close()


class Counting:
    """A sink that only counts."""

    name = "counting"

    def __init__(self) -> None:
        self.steps = 0
        self.go = threading.Event()
        self.go.set()

    def take(self, steps: list[Step], requests: list[tuple[str, Known]]) -> None:
        self.go.wait()
        self.steps += len(steps)

    def fell_back(self, error: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_full_disk_ends_the_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[str]
) -> None:
    writes = []
    write = segments.atomic_write

    def filling_up(path: Path, content: Any) -> None:
        writes.append(path)
        if len(writes) > 3:
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(segments, "atomic_write", filling_up)
    other = Counting()
    teller = Telemetry([Segments(tmp_path, {}, rows=10), other], tick_s=0.001)
    for number in range(100):
        teller.ended(a_step(number))
        time.sleep(0.0002)
    teller.close()
    assert len(errors) == 1
    assert "the server goes on" in errors[0]
    assert "No space left on device" in errors[0]
    assert other.steps == 100
    assert len(writes) == 4
    assert read_telemetry(tmp_path).steps["step"].to_pylist() == list(range(20))


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path, errors: list[str]) -> None:
    (tmp_path / "file").write_text("")
    asked = Settings(policy="vllm-default", telemetry=str(tmp_path / "file"), prometheus=False)
    assert open_telemetry(asked) is None
    assert len(errors) == 1
    assert open_telemetry(Settings(policy="vllm-default", prometheus=False)) is None
    assert len(errors) == 1


def test_a_disk_that_hangs_costs_rows_not_memory(errors: list[str]) -> None:
    stuck = Counting()
    stuck.go.clear()
    teller = Telemetry([stuck], tick_s=0.001, backlog=2 * telemetry.BATCH)
    for number in range(10 * telemetry.BATCH):
        teller.ended(a_step(number))
    assert len(errors) == 1
    assert "rows behind" in errors[0]
    assert len(teller._steps) <= 2 * telemetry.BATCH
    stuck.go.set()
    teller.close()
    assert len(errors) == 1


CHILD = """
import multiprocessing, sys
from gpu_runner.settings import Settings
from gpu_runner.metrics_export import open_metrics
from tests.gpu_runner.test_telemetry import a_request, a_step

def engine():
    metrics = open_metrics(Settings(policy="sloweave"))
    if metrics is None:
        return
    metrics.take([a_step(n) for n in range(60)], [a_request(n) for n in range(9)])
    metrics.fell_back("x")

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=engine)
    process.start()
    process.join()
    from vllm.v1.metrics.prometheus import get_prometheus_registry
    from prometheus_client import generate_latest
    sys.stdout.write(generate_latest(get_prometheus_registry()).decode())
"""


@pytest.mark.parametrize("shared", [True, False])
def test_metrics_of_the_engines_process_where_they_can_be_seen(tmp_path: Path, shared: bool) -> None:
    """Asked as vLLM's ``/metrics`` does, by a process that is not the engine's."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("vllm")
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "child.py").write_text(CHILD)
    environment = {k: v for k, v in os.environ.items() if k != "PROMETHEUS_MULTIPROC_DIR"} | {"PYTHONPATH": str(root)}
    if shared:
        (tmp_path / "metrics").mkdir()
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path / "metrics")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "child.py")], env=environment, capture_output=True, text=True, check=True
    )
    told = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith("prefillsim:"))
    if not shared:
        assert not told
        return
    assert float(told["prefillsim:steps_total"]) == 60
    assert float(told["prefillsim:step_seconds_count"]) == 60
    assert float(told["prefillsim:prefill_tokens_total"]) == sum(a_step(n).prefill_tokens for n in range(60))
    assert float(told['prefillsim:requests_total{outcome="rejected"}']) == 3
    predicted = [s for s in map(a_step, range(60)) if s.predicted]
    assert float(told["prefillsim:deadline_steps_total"]) == len(predicted)
    late = [s for s in predicted if s.slack is not None and s.end - s.start > s.slack + s.predicted]
    assert float(told["prefillsim:late_steps_total"]) == len(late) > 0
    assert float(told["prefillsim:fallback"]) == 1
    assert float(told['prefillsim:policy_info{cost_model="",policy="sloweave"}']) == 1
