"""Sweeps: the same bytes however they are run, finished cells kept whatever happens, and trusted only when whole."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.axes import Experiment, plan
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.folders import PART, claim, whole_folder
from experiments.run import run_cell, stored_result
from experiments.sweep import Interrupted, SweepResult, run_sweep
from sim import store
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from tests.experiments.conftest import Cli
from traces.synthetic import generate

VALUES: dict[str, Any] = {
    "trace.workload": "mixed",
    "trace.limit": 30,
    "policies": ["fcfs+full", "sloweave"],
    "seeds": 2,
    "slo": "ttft:1000,tpot_p99:25",
}

FAILING = """
from policies import Chunking, Grant, register

@register
class Failing(Chunking):
    "Fails from the third decode on."
    name = "{name}"

    def grant(self, batch):
        return Grant(1 // (batch.n_decode < 3) * batch.candidates[0].remaining)
"""


def planned(values: dict[str, Any] | None = None, **axes: Any) -> Experiment:
    draft = Draft()
    for key, value in {**VALUES, **(values or {})}.items():
        draft.put(key, value, "test")
    draft.put("sweep", axes, "test.toml")
    return plan(draft)


def run(out: Path, values: dict[str, Any] | None = None, **options: Any) -> SweepResult:
    return run_sweep(planned(values, rate=[60, 90]), out=out, **options)


def tables(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.suffix in (".parquet", ".csv"))
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_cell_is_what_the_simulator_says(tmp_path: Path) -> None:
    for cell in planned().cells:
        result = run_cell(cell, tmp_path / cell.key, {})
        objectives = Objectives.parse("ttft:1000,tpot_p99:25")
        trace = generate("mixed", cell.seed, 30)
        direct = simulate(trace, cell.policy.build(), cell.cost, objectives=objectives)
        assert result.summary == summarise(direct.requests, direct.steps, objectives)
        kept = store.read_run(tmp_path / cell.key)
        for name, values in direct.steps.items():
            np.testing.assert_array_equal(kept.steps[name], values)
        assert summarise(kept.requests, kept.steps, objectives) == result.summary
        assert kept.info["key"] == cell.key
        assert kept.info["resolved"] == cell.resolved()


def test_tables_are_the_same_bytes_for_any_number_of_jobs_and_any_hash_seed(tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in VALUES.items()]
    config.write_text("\n".join([*lines, "[sweep]", "rate = [60, 90]", ""]))
    command = [sys.executable, "-m", "experiments.cli", "sweep", str(config), "--out", str(tmp_path / "a")]
    other = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    subprocess.run([*command, "--jobs", "2"], env=other, capture_output=True, check=True)
    run(tmp_path / "b")
    assert len(tables(tmp_path / "a")) == 2 * 8 + 2
    assert tables(tmp_path / "a") == tables(tmp_path / "b")


def test_the_summary_table_has_a_row_per_cell_in_the_order_of_the_axes(tmp_path: Path) -> None:
    sweep = run(tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "summary.parquet").to_pylist()
    got = [(row["rate"], row["policy"], row["seed"]) for row in rows]
    assert got == [(rate, policy, seed) for rate in (60, 90) for policy in VALUES["policies"] for seed in (0, 1)]
    for row, cell in zip(rows, sweep.experiment.cells, strict=True):
        summary = sweep.results[cell.key].summary
        assert summary is not None
        assert {name: row[name] for name in summary} == summary
        assert row["error"] is None
    index = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert index["status"] == "finished"
    assert index["axes"] == {"rate": [60, 90]}
    assert [c["key"] for c in index["cells"]] == [row["cell"] for row in rows]


def test_summaries_alone_are_kept_on_request(tmp_path: Path) -> None:
    records, summaries = run(tmp_path / "a"), run(tmp_path / "b", {"keep": "summary"})
    assert [r.summary for r in records.results.values()] == [r.summary for r in summaries.results.values()]
    kept = {path.name for path in (tmp_path / "b" / "cells").glob("*/*")}
    assert kept == {"summary.json", "run.json"}
    again = run(tmp_path / "b", {"keep": "summary"}, resume=True)
    assert again.reused == len(again.experiment.cells)
    assert again.results == summaries.results
    for name in ("run.json", "summary.json"):
        for text in ("[]", "{", "null"):
            (tmp_path / "b" / "cells" / again.experiment.cells[0].key / name).write_text(text)
            assert run(tmp_path / "b", {"keep": "summary"}, resume=True).results == summaries.results
    summary = tmp_path / "b" / "cells" / again.experiment.cells[0].key / "summary.json"
    summary.write_text(summary.read_text().replace("1", "2"))
    mended = run(tmp_path / "b", {"keep": "summary"}, resume=True)
    assert mended.reused == len(again.experiment.cells) - 1
    assert mended.results == summaries.results


def test_resume_trusts_only_whole_cells_of_the_same_key(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run(out)
    before = tables(out)
    keys = [cell.key for cell in first.experiment.cells]
    cells = [out / "cells" / key for key in keys]
    (cells[0] / "run.json").unlink()
    (cells[1] / "run.json").write_text("{")
    (cells[2] / "steps.parquet").write_bytes(b"PAR1")
    (cells[3] / "summary.json").unlink()
    text = (cells[4] / "run.json").read_text()
    (cells[4] / "run.json").write_text(text.replace(keys[4], keys[5]))
    again = run(out, resume=True)
    assert again.reused == len(keys) - 5
    assert again.results == first.results
    assert tables(out) == before


def test_resume_puts_cells_in_place_of_whatever_is_there(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    first = run(out)
    before = tables(out)
    shutil.copytree(out / "cells", elsewhere)
    (elsewhere / "mine.txt").touch()
    cells = sorted((out / "cells").iterdir())
    for cell in cells[:3]:
        shutil.rmtree(cell)
    cells[0].write_text("a file")
    cells[1].symlink_to(elsewhere)
    cells[2].symlink_to(tmp_path / "nowhere")
    again = run(out, resume=True)
    assert again.reused == len(first.results) - 3
    assert tables(out) == before
    assert (elsewhere / "mine.txt").exists()


def test_resume_runs_what_a_changed_configuration_adds(tmp_path: Path) -> None:
    run(tmp_path / "out")
    more = run(tmp_path / "out", {"seeds": 3}, resume=True)
    assert more.reused == 8
    assert len(more.results) == 12


def test_resume_without_a_folder_finds_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run_sweep(planned(), out=None)
    second = run_sweep(planned(), out=None)
    assert second.out == first.out.with_name(first.out.name + "-2")
    assert run_sweep(planned(), out=None, resume=True).out == second.out
    fresh = run_sweep(planned({"seeds": 1}), out=None, resume=True)
    assert fresh.reused == 0


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="exists and is not empty; give another folder, or --resume"):
        run(tmp_path / "full")
    with pytest.raises(ConfigError, match="is not the folder of a sweep"):
        run(tmp_path / "full", resume=True)
    with pytest.raises(ConfigError, match="is a file"):
        run(tmp_path / "file")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty").reused == 0


def test_two_runs_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """inference-sim#965, LLMServingSim PR 43: two runs at once in one folder."""
    monkeypatch.chdir(tmp_path)

    def fill_while_another_claims(folder: Path) -> None:
        claim(Path("out"), "s", lambda other: (other / "theirs").touch())
        (folder / "mine").touch()

    with pytest.raises(ConfigError, match="exists and is not empty"):
        claim(Path("out"), "s", fill_while_another_claims)
    assert [path.name for path in Path("out").iterdir()] == ["theirs"]
    names = [claim(None, "s", lambda folder: (folder / "x").touch()) for _ in range(3)]
    assert [str(name) for name in names] == ["runs/s", "runs/s-2", "runs/s-3"]
    assert not list(tmp_path.rglob(f"{PART}*"))


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError), whole_folder(tmp_path / "a" / "out") as part:
        half(part)
    assert list((tmp_path / "a").iterdir()) == []


def test_a_cell_that_another_process_has_made_meanwhile_is_as_good(tmp_path: Path) -> None:
    (cell, *_) = planned().cells
    first = run_cell(cell, tmp_path / cell.key, {})
    assert run_cell(cell, tmp_path / cell.key, {}) == first
    assert stored_result(cell, tmp_path / cell.key) == first
    assert [path.name for path in tmp_path.iterdir()] == [cell.key]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_does_not_end_the_sweep(tmp_path: Path, jobs: int) -> None:
    plugin = tmp_path / "failing.py"
    plugin.write_text(FAILING.format(name=f"failing-{jobs}"))
    policies = [f"fcfs+failing-{jobs}", "fcfs+full"]
    sweep = run(tmp_path / "out", {"plugins": [str(plugin)], "policies": policies}, jobs=jobs)
    assert len(sweep.failures) == 4
    assert sweep.failure_lines[0].startswith(
        f"fcfs+failing-{jobs} on mixed, seed 0, rate=60: policy fcfs+failing-{jobs}"
    )
    assert f"{plugin}, line 10: ZeroDivisionError" in sweep.failure_lines[0]
    rows = pq.read_table(tmp_path / "out" / "summary.parquet").to_pylist()
    assert [row["goodput"] is None for row in rows] == [row["policy"] != "fcfs+full" for row in rows]
    again = run(tmp_path / "out", {"plugins": [str(plugin)], "policies": policies}, resume=True)
    assert again.reused == 4


def test_a_point_that_cannot_run_fails_alone(tmp_path: Path) -> None:
    sweep = run_sweep(planned(tpot=[0.5, 25]), out=tmp_path / "out")
    assert [(c.label, dict(c.point)["tpot"]) for c, _ in sweep.failures] == [("sloweave", 0.5)] * 2
    assert all("smaller than any step" in error for _, error in sweep.failures)


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    written = 0
    real = store.atomic_write

    def fills_up(path: Path, content: Any) -> None:
        nonlocal written
        written += 1
        if written > 10:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(store, "atomic_write", fills_up)
        with pytest.raises(OSError, match="No space left") as caught:
            run(out)
    assert "2 of 8 runs are finished and kept in" in caught.value.__notes__[0]
    assert "--resume" in caught.value.__notes__[0]
    assert {path.name for path in out.iterdir()} == {"cells", "sweep.json"}
    assert len(list((out / "cells").iterdir())) == 2
    again = run(out, resume=True)
    assert again.reused == 2
    assert tables(out) == tables(run(tmp_path / "other").out)


def test_an_interrupt_between_cells_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import experiments.executors

    ran = 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > 3:
            raise KeyboardInterrupt
        return run_cell(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(experiments.executors, "run_cell", interrupted)
        with pytest.raises(Interrupted, match="3 of 8 runs are finished and kept"):
            run(tmp_path / "out")
    assert run(tmp_path / "out", resume=True).reused == 3


def test_control_c_keeps_finished_cells_and_resume_goes_on(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**VALUES, "seeds": 100, "trace.limit": 500}.items()]
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "experiments.cli", "sweep", str(config), "--out", str(tmp_path / "out")]
    # A session of its own, so that all processes get the signal, as from a terminal; and not ignored, as it is by
    # whatever a shell has started in the background.
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    cells = tmp_path / "out" / "cells"
    deadline = time.monotonic() + 60
    while not (cells.is_dir() and any(not path.name.startswith(".") for path in cells.iterdir())):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    kept = sorted(path.name for path in cells.iterdir())
    assert process.returncode == 130
    assert out == ""
    assert f"interrupted: {len(kept)} of 200 runs are finished and kept in {tmp_path / 'out'}" in err
    assert f"prefillsim sweep {config} --out {tmp_path / 'out'} --jobs 2 --resume" in err
    assert "Traceback" not in err
    assert 0 < len(kept) < 200
    assert not any(name.startswith(PART) for name in kept)
    document = cli(*command[3:], "--resume", "--json", "--set", "seeds=3").json
    assert document["runs"] == 6
    assert 0 < document["reused"] <= 6
