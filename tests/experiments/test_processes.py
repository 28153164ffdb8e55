"""Processes that start before their work is known, and end with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from experiments import processes
from experiments.processes import begun, outcomes


def running() -> set[int]:
    """Return the processes that this one has started for work, and that have not ended."""
    mine = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, rest = status.read_text().rsplit(")", 1)
            command = status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        state, parent = rest.split()[:2]
        # What tracks that which they share stays.
        if int(parent) == os.getpid() and state != "Z" and b"resource_tracker" not in command:
            mine.add(int(status.parent.name))
    return mine


def wait_for(fact: Callable[[], bool]) -> None:
    for _ in range(600):
        if fact():
            return
        time.sleep(0.05)
    raise AssertionError("not so after half a minute")


pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def test_work_finds_processes_that_have_begun_and_they_end_with_it() -> None:
    with begun(2):
        early = running()
        workers = set(outcomes(os.getpid, [()] * 8, 2))
        assert workers <= early
    wait_for(lambda: not workers & running())
    assert set(outcomes(os.getpid, [()], 2)).isdisjoint(workers)


def test_processes_end_without_a_word_where_there_is_no_work_after_all() -> None:
    before = running()
    with pytest.raises(ValueError, match="no such file"), begun(2):
        raise ValueError("no such file")
    wait_for(lambda: running() <= before)


def slowly(number: int) -> int:
    time.sleep(0.01)
    return number


def test_every_task_is_done_once_and_few_are_taken_ahead() -> None:
    taken = []

    def tasks() -> Iterator[tuple[int]]:
        for number in range(30):
            taken.append(number)
            yield (number,)

    found = []
    for outcome in outcomes(slowly, tasks(), 2):
        found.append(outcome)
        assert len(taken) <= len(found) + 2 * 2 + 2
    assert sorted(found) == list(range(30))


def test_fewer_jobs_than_processes_are_done_by_so_many_at_a_time(tmp_path: Path) -> None:
    with begun(2):
        early = running()
        marks = list(outcomes(alone_in, [(tmp_path,)] * 6, 1))
        assert running() == early
    assert marks == [True] * 6


def alone_in(folder: Path) -> bool:
    """Tell whether nobody else is in a folder, where this stays for a moment."""
    mine = folder / str(os.getpid())
    mine.touch()
    time.sleep(0.02)
    alone = list(folder.iterdir()) == [mine]
    mine.unlink()
    return alone


def test_a_pool_that_was_killed_without_work_is_replaced() -> None:
    workers = set(outcomes(os.getpid, [()] * 8, 2))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not workers & running())
    try:
        again = set(outcomes(os.getpid, [()] * 8, 2))
    except BrokenExecutor:  # if nobody had noticed yet
        again = set(outcomes(os.getpid, [()] * 8, 2))
    assert again
    assert not again & workers


def test_processes_are_killed_where_nobody_asks_for_the_rest() -> None:
    workers = set(outcomes(os.getpid, [()] * 8, 2))
    assert workers <= running()
    answers = outcomes(time.sleep, [(0,), *[(60,)] * 5], 2)
    next(answers)
    assert isinstance(answers, Generator)
    answers.close()
    assert not workers & running()


@pytest.mark.parametrize(
    ("jobs", "where"), [(None, None), (1, None), (2, "in-process"), (2, "tcp://host:1"), (1000, None), (-1, None)]
)
def test_nothing_begins_that_is_not_surely_asked_for(jobs: int | None, where: str | None) -> None:
    before = running()
    with begun(jobs, where):
        assert running() <= before


def test_as_many_begin_as_there_are_cores_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 3)
    before = running()
    with begun(3):
        assert len(running() - before) == 3
    with begun(4):
        assert len(running() - before) <= 3
