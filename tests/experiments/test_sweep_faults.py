"""Faults: killed processes and drivers, full disks, second drivers; nothing is lost and nothing doubled."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.executors import DEATHS, Processes
from experiments.folders import PART
from experiments.sweep import Stopped, run_sweep
from tests.experiments.conftest import Cli
from tests.experiments.sweeping import KILLER, WAITING, command, planned, tables, toml


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for text in lists for child in text.read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def clean(out: Path) -> bool:
    return {path.name for path in out.iterdir()} == {
        "cells",
        "summary.csv",
        "summary.parquet",
        "sweep.json",
    } and not any(path.name.startswith(".") for path in out.rglob("*"))


def test_a_run_whose_process_is_killed_is_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each try more takes seconds to start processes.
    monkeypatch.setattr(Processes, "tries_alone", 1)
    plugin = tmp_path / "killer.py"
    plugin.write_text(KILLER.format(name="p", mark=tmp_path / "killed"))
    policies = ["fcfs+full", "fcfs+p-once", "fcfs+p-always"]
    values = {"plugins": [str(plugin)], "policies": policies, "seeds": 1}
    sweep = run_sweep(planned(values), out=tmp_path / "out", jobs=2)
    full, once, always = (sweep.results[cell.key] for cell in sweep.experiment.cells)
    assert (tmp_path / "killed").exists()
    assert full.summary is not None
    assert once.summary == full.summary
    assert sweep.failure_lines == [
        "fcfs+p-always on mixed, seed 0: every process that ran it was killed, perhaps for want of memory"
    ]
    assert always.summary is None
    assert clean(sweep.out)
    assert len(list((sweep.out / "cells").iterdir())) == 2


def test_processes_that_die_before_they_run_anything_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import BrokenExecutor

    asked = 0

    def broken(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise BrokenExecutor

    monkeypatch.setattr(Processes, "_results", broken)
    with pytest.raises(Stopped, match=r"killed before they ran anything.*0 of 4 runs are finished and kept in"):
        run_sweep(planned(), out=tmp_path / "out", cluster="processes")
    assert asked == DEATHS


def test_kill_9_of_the_driver_loses_no_finished_run(tmp_path: Path) -> None:
    """Killed while a run is in progress, which waits for a file that is not there yet."""
    plugin, here, go = tmp_path / "waiting.py", tmp_path / "here", tmp_path / "go"
    plugin.write_text(WAITING.format(here=here, go=go))
    values = {"plugins": [str(plugin)], "policies": ["fcfs+full", "fcfs+waiting"], "seeds": 6}
    out = tmp_path / "out"
    process = subprocess.Popen(command(toml(tmp_path / "grid.toml", values), out, "--jobs", "2"), text=True)
    wait_for(lambda: any((out / "cells").glob("[!.]*/run.json")) and here.exists(), process)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = {path.name for path in (out / "cells").glob("[!.]*")}
    assert 0 < len(kept) < 12
    assert any((out / "cells").glob(f"{PART}*"))
    # From here on the processes finish what they have begun, unless they notice before that their driver is gone.
    go.touch()
    again = run_sweep(planned(values), out=out, resume=True)
    assert len(kept) <= again.reused < 12
    assert clean(out)
    assert tables(out) == tables(run_sweep(planned(values), out=tmp_path / "other").out)
    deadline = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "processes outlive a driver that was killed"
        time.sleep(0.05)


def test_sigterm_ends_a_sweep_as_ctrl_c_does(tmp_path: Path) -> None:
    """Sent to a whole job, as clusters do."""
    plugin, here, go = tmp_path / "waiting.py", tmp_path / "here", tmp_path / "go"
    plugin.write_text(WAITING.format(here=here, go=go))
    config = toml(tmp_path / "grid.toml", {"plugins": [str(plugin)], "policies": ["fcfs+waiting"]})
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(config, out, "--jobs", "2"), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(here.exists, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith(f"prefillsim: interrupted: 0 of 2 runs are finished and kept in {out}; go")
    assert "Traceback" not in said
    assert {path.name for path in out.rglob("*")} == {"cells", "sweep.json"}


def test_standard_files_that_are_closed_are_no_concern_of_processes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep = command(toml(tmp_path / "grid.toml"), out, "--jobs", "2")
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *sweep], check=False)
    assert done.returncode == 0
    assert clean(out)


def test_two_drivers_on_one_folder(cli: Cli, tmp_path: Path) -> None:
    plugin, here, go = tmp_path / "waiting.py", tmp_path / "here", tmp_path / "go"
    plugin.write_text(WAITING.format(here=here, go=go))
    config = toml(tmp_path / "grid.toml", {"plugins": [str(plugin)], "policies": ["fcfs+waiting"]})
    out = tmp_path / "out"
    first = subprocess.Popen(command(config, out, "--json"), stdout=subprocess.PIPE, text=True)
    wait_for(here.exists, first)
    begun = [path.name for path in (out / "cells").iterdir()]
    second = cli("sweep", str(config), "--out", str(out), "--resume")
    assert second.code == 2
    assert f"another sweep is writing into {out}: process {first.pid} on" in second.err
    assert cli("sweep", str(config), "--out", str(out)).code == 2
    assert [path.name for path in (out / "cells").iterdir()] == begun
    go.touch()
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0
    assert json.loads(said)["reused"] == 0
    before = tables(out)
    assert cli("sweep", str(config), "--out", str(out), "--resume", "--json").json["reused"] == 2
    assert tables(out) == before
    assert clean(out)


FULL = """
set -e
mount -t tmpfs -o size=400k tmpfs "$1"
status=0
"$2" -m experiments.cli sweep "$3" --out "$1/out" --jobs 2 || status=$?
echo "status $status"
ls -A "$1/out" "$1/out/cells"
cp -r "$1/out" "$4"
"""


def test_a_disk_that_is_full_is_one_sentence_and_resume_goes_on_with_more_space(tmp_path: Path) -> None:
    """A file system of 400 KiB, in a namespace of its own."""
    unshare = shutil.which("unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    own = [str(unshare), "-Urm"]
    if unshare is None or subprocess.run([*own, "mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    config = toml(tmp_path / "grid.toml", {"trace.limit": 300, "seeds": 6})
    python = command(config, disk)[0]
    arguments = [str(disk), python, str(config), str(tmp_path / "copy")]
    done = subprocess.run([*own, "sh", "-c", FULL, "sh", *arguments], capture_output=True, text=True, check=True)
    full, _, left = done.stdout.partition("status 2\n")
    assert full == ""
    assert "no space left on device while writing" in done.stderr
    assert f"of 12 runs are finished and kept in {disk}/out; go on with: prefillsim sweep {config}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "sweep.json" in left
    assert PART not in left
    assert ".lock" not in left
    resumed = run_sweep(planned({"trace.limit": 300, "seeds": 6}), out=tmp_path / "copy", resume=True)
    assert 0 < resumed.reused < 12
    whole = run_sweep(planned({"trace.limit": 300, "seeds": 6}), out=tmp_path / "whole", jobs=1)
    assert tables(tmp_path / "copy") == tables(whole.out)


def test_parts_of_a_killed_driver_are_removed_by_the_next(tmp_path: Path) -> None:
    sweep = run_sweep(planned(), out=tmp_path / "out")
    part = sweep.out / "cells" / f"{PART}0a1b2c3d-{sweep.experiment.cells[0].key}-0123456789abcdef"
    part.mkdir()
    (part / "steps.parquet").write_bytes(os.urandom(10))
    run_sweep(planned(), out=tmp_path / "out", resume=True)
    assert clean(sweep.out)


def test_the_bar_shows_runs_requests_per_second_and_time_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sweep(planned(tpot=[0.5, 25]), out=tmp_path / "out", progress=True)
    drawn = capsys.readouterr().err
    assert "0/8 runs" in drawn
    assert " requests/s" in drawn
    assert " to go" in drawn
