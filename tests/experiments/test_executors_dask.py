"""Sweeps on a real Dask cluster over TCP: the same bytes, workers killed in the middle, and clear refusals."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import executors_dask
from experiments.cells import Plugin
from experiments.config import ConfigError
from experiments.executors import ExecutorLost
from experiments.executors_dask import DaskCluster, _code, _problem, _run_task
from experiments.sweep import Stopped, run_sweep
from tests.experiments.sweeping import KILLER, WAITING, planned, tables

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


FORKED = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.worker.profile.enabled": False}
IMPORTED = ["distributed", "experiments.executors_dask", "policies.ordering", "sim.parquet", "traces.synthetic"]


def started(workers: int) -> Any:
    """A cluster whose workers are forked from a process that has imported everything; else each of them does so."""
    dask.config.set(FORKED)
    distributed.utils.get_mp_context().set_forkserver_preload(IMPORTED)
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    # So that the scheduler gives up tasks, as it does where more workers are killed than here, and soon gives up a
    # connection to one that was killed.
    settings = {"distributed.scheduler.allowed-failures": 1, "distributed.comm.timeouts.connect": "10s"}
    with dask.config.set(settings), started(2) as local:
        yield local.scheduler_address


@pytest.fixture(autouse=True)
def _any_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may commit between the start of the workers and the test."""
    monkeypatch.setattr(executors_dask, "SAME", ("packages", "python"))


def files(out: Path) -> set[str]:
    return {path.name for path in (*out.iterdir(), *(out / "cells").iterdir())}


def test_the_same_tables_as_in_process_from_files_with_relative_paths(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"2023-11-16 18:15:{i:02d}.0000000,{100 + i},{5 + i}\n" for i in range(20)]
    Path("trace.csv").write_text(AZURE + "".join(rows))
    Path("killer.py").write_text(KILLER.format(name="relative", mark=tmp_path / "killed"))
    (tmp_path / "killed").touch()
    values = {
        "trace.workload": None,
        "trace.file": "trace.csv",
        "trace.limit": None,
        "plugins": ["killer.py"],
        "policies": ["fcfs+relative-once", "sloweave"],
    }
    given = {key: value for key, value in values.items() if value is not None}
    experiment = planned_file(given)
    there = run_sweep(experiment, out=Path("there"), cluster=cluster)
    here = run_sweep(experiment, out=Path("here"), cluster="in-process")
    assert there.failures == []
    assert there.results == here.results
    assert tables(there.out) == tables(here.out)
    assert files(there.out) == files(here.out)


def planned_file(values: dict[str, Any]) -> Any:
    from experiments.axes import plan
    from experiments.draft import Draft

    draft = Draft()
    for key, value in {"slo": "ttft:1000,tpot_p99:25", "seeds": 2, **values}.items():
        draft.put(key, value, "test")
    draft.put("sweep", {"rate": [30.0, 60.0]}, "test.toml")
    return plan(draft)


def test_workers_that_are_killed_cost_only_the_run_that_kills_them(cluster: str, tmp_path: Path) -> None:
    plugin = tmp_path / "killer.py"
    plugin.write_text(KILLER.format(name="d", mark=tmp_path / "killed"))
    values = {"plugins": [str(plugin)], "policies": ["fcfs+full", "fcfs+d-once", "fcfs+d-always"], "seeds": 1}
    sweep = run_sweep(planned(values), out=tmp_path / "out", cluster=cluster)
    full, once, _always = (sweep.results[cell.key] for cell in sweep.experiment.cells)
    assert (tmp_path / "killed").exists()
    assert full.summary is not None
    assert once.summary == full.summary
    assert sweep.failure_lines == [
        "fcfs+d-always on mixed, seed 0: every process that ran it was killed, perhaps for want of memory"
    ]
    assert files(sweep.out) == {"cells", "summary.csv", "summary.parquet", "sweep.json", full.key, once.key}


class FakeFuture(SimpleNamespace):
    __hash__ = object.__hash__


class FakeClient:
    """A scheduler whose futures come to what ``result`` says, in the order in which tasks are submitted."""

    loop = None

    def __init__(self, status: str, result: Callable[[int], object]) -> None:
        self.status, self.result, self.submitted = status, result, 0

    def nthreads(self) -> dict[str, int]:
        return {"a": 1, "b": 1}

    def run(self, *_: object, **__: object) -> dict[str, None]:
        return {}

    def submit(self, *_: object, **__: object) -> FakeFuture:
        self.submitted += 1
        number = self.submitted
        return FakeFuture(status=self.status, result=lambda: self.result(number))

    def cancel(self, futures: list[object]) -> None:
        pass


class Completed(list[FakeFuture]):
    def __init__(self, futures: dict[FakeFuture, object], loop: None):
        super().__init__(futures)

    add = list.append


def outcomes(client: FakeClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    dask = DaskCluster.__new__(DaskCluster)
    dask.address, dask._client = "tcp://h:1", client
    monkeypatch.setattr(distributed, "as_completed", Completed)
    return list(dask.run(planned().cells, folder))


def killed(_: int) -> object:
    raise distributed.KilledWorker("task", None, 0)


def test_workers_that_are_killed_whatever_they_run_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task is given up at once, and nothing of it has begun."""
    client = FakeClient("error", killed)
    with pytest.raises(ExecutorLost, match="are killed whatever they run"):
        outcomes(client, tmp_path, monkeypatch)
    assert 4 * executors_dask.UNEXPLAINED <= client.submitted <= 4 * (executors_dask.UNEXPLAINED + 1)
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_goes_away_with_its_worker_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was finished, and its worker is killed by another task before it is fetched."""
    client = FakeClient("finished", lambda number: killed(number) if number <= 2 else [number])
    assert sorted(outcomes(client, tmp_path, monkeypatch)) == [3, 4, 5, 6]


def test_a_scheduler_that_goes_away_before_a_result_is_fetched_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(_: int) -> object:
        raise CancelledError

    with pytest.raises(ExecutorLost, match="the Dask scheduler at tcp://h:1 is gone"):
        outcomes(FakeClient("finished", cancelled), tmp_path, monkeypatch)


def test_a_worker_killed_from_outside_in_the_middle_of_a_run(cluster: str, tmp_path: Path) -> None:
    plugin, here, go = tmp_path / "waiting.py", tmp_path / "here", tmp_path / "go"
    plugin.write_text(WAITING.format(here=here, go=go).replace("touch()", "write_text(str(__import__('os').getpid()))"))
    values = {"plugins": [str(plugin)], "policies": ["fcfs+waiting", "fcfs+full"]}

    def kill() -> None:
        while not (here.exists() and here.read_text()):
            time.sleep(0.01)
        go.touch()
        os.kill(int(here.read_text()), signal.SIGKILL)

    go_on = threading.Thread(target=kill, daemon=True)
    go_on.start()
    sweep = run_sweep(planned(values), out=tmp_path / "out", cluster=cluster)
    go_on.join()
    assert sweep.failures == []
    summaries = {cell.label: [] for cell in sweep.experiment.cells}
    for cell in sweep.experiment.cells:
        summaries[cell.label].append(sweep.results[cell.key].summary)
    assert summaries["fcfs+waiting"] == summaries["fcfs+full"]
    assert not any(name.startswith(".") for name in files(sweep.out))


def test_a_failing_run_does_not_end_the_sweep(cluster: str, tmp_path: Path) -> None:
    sweep = run_sweep(planned(tpot=[0.5, 25]), out=tmp_path / "out", cluster=cluster)
    assert [(c.label, dict(c.point)["tpot"]) for c, _ in sweep.failures] == [("sloweave", 0.5)] * 2


def test_workers_that_run_other_code_are_refused(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_dask, "SAME", ("git", "packages", "python"))
    monkeypatch.setattr(executors_dask, "provenance", lambda: {"git": {}, "packages": {}, "python": "3.99"})
    with pytest.raises(ConfigError, match=r"the worker tcp://.* runs other code: its git is") as caught:
        run_sweep(planned(), out=tmp_path / "out", cluster=cluster)
    assert "0 of 4 runs are finished and kept in" in caught.value.__notes__[0]


def test_a_scheduler_that_goes_away_ends_the_sweep_and_resume_goes_on(tmp_path: Path) -> None:
    plugin, here, go = tmp_path / "waiting.py", tmp_path / "here", tmp_path / "go"
    plugin.write_text(WAITING.format(here=here, go=go))
    values = {"plugins": [str(plugin)], "policies": ["fcfs+full", "fcfs+waiting"]}
    local = started(1)

    def close() -> None:
        while not here.exists():
            time.sleep(0.01)
        local.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    with pytest.raises(Stopped, match=r"the Dask scheduler at tcp://.* is gone: .* of 4 runs are finished and kept in"):
        run_sweep(planned(values), out=tmp_path / "out", cluster=local.scheduler_address)
    closing.join()
    go.touch()
    assert run_sweep(planned(values), out=tmp_path / "out", resume=True).failures == []


def test_what_a_worker_does_not_see_is_named(tmp_path: Path) -> None:
    mark = tmp_path / "out" / "cells" / "mark"
    assert "does not see the results folder" in str(_problem(mark, {}, [], _code()))
    (cell, *_) = planned().cells
    with pytest.raises(ConfigError, match=r"does not see the results folder .*on storage that all machines share"):
        _run_task([cell], mark, "owner", 1)
    assert not (tmp_path / "out").exists()
    mark.mkdir(parents=True)
    trace = tmp_path / "trace.csv"
    assert "does not see the trace" in str(_problem(mark, {str(trace): (1, 1)}, [], _code()))
    plugin = tmp_path / "plugin.py"
    for content in (None, b"other"):
        if content is not None:
            plugin.write_bytes(content)
        assert "does not see the plug-in" in str(_problem(mark, {}, [Plugin(str(plugin), "0" * 64)], _code()))
    assert _problem(mark, {}, [], _code()) is None


def test_an_address_where_nobody_answers_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_dask, "ANSWER_S", 0.2)
    for address in ("tcp://127.0.0.1:1", "nonsense://x", "tls://127.0.0.1:1"):
        with pytest.raises(ConfigError, match="no Dask scheduler answers there"):
            run_sweep(planned(), out=tmp_path / "out", cluster=address)
    assert not (tmp_path / "out").exists()


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"pip install 'prefillsim\[cluster\]'"):
        DaskCluster("tcp://127.0.0.1:1")
