"""Locks of a sweep's folder: one driver or the shards of one division, and nothing left when a holder is killed."""

import errno
import fcntl
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import locks
from experiments.config import ConfigError
from experiments.locks import driving
from experiments.shards import Shard
from experiments.sweep import run_sweep
from tests.experiments.sweeping import planned

HOLDER = """
import sys, time
from pathlib import Path
from experiments.locks import driving
from experiments.shards import Shard
shard = Shard.parse(sys.argv[2]) if len(sys.argv) > 2 else None
with driving(Path(sys.argv[1]), shard):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.05)


def holder(folder: Path, *shard: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), *shard], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_does_not_write_where_a_link_leads(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / locks.LOCK).symlink_to(mine)
    with pytest.raises(OSError, match=locks.LOCK), driving(tmp_path / "out", None):
        pass
    assert mine.read_text() == "mine"


def test_a_second_driver_is_told_who_the_first_is_until_that_is_killed(tmp_path: Path) -> None:
    sweep = run_sweep(planned({"seeds": 1}), out=tmp_path / "out")
    process = holder(sweep.out)
    try:
        who = f"process {process.pid} on {socket.gethostname()}, since .*, runs all of it"
        for shard in (None, Shard(1, 2)):
            with pytest.raises(ConfigError, match=who):
                run_sweep(planned({"seeds": 1}), out=sweep.out, resume=True, shard=shard)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (sweep.out / "sweep.lock").exists()
    assert run_sweep(planned({"seeds": 1}), out=sweep.out, resume=True).reused == 2
    assert not (sweep.out / "sweep.lock").exists()


def test_shards_of_one_division_hold_the_folder_together(tmp_path: Path) -> None:
    with driving(tmp_path, Shard(1, 3)) as alone, driving(tmp_path, Shard(3, 3)) as also:
        assert not alone
        assert not also
        with (
            pytest.raises(ConfigError, match=r"runs shard 1/3; process .* runs shard 3/3; wait for it"),
            driving(tmp_path, None),
        ):
            pass
        with pytest.raises(ConfigError, match="runs shard 3/3; wait for it"), driving(tmp_path, Shard(3, 3)):
            pass
        with (
            pytest.raises(ConfigError, match=r"is running shard 1/3 of the same sweep.*the same number of them"),
            driving(tmp_path, Shard(1, 4)),
        ):
            pass
    assert list(tmp_path.iterdir()) == []
    with driving(tmp_path, None) as alone:
        assert alone


def test_a_shard_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    process = holder(tmp_path, "2/3")
    process.kill()
    process.communicate()
    for shard in (Shard(2, 3), Shard(1, 5), None):
        with driving(tmp_path, shard):
            pass


def test_a_file_that_its_holder_removes_before_it_is_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking: whoever comes later must not find another file there, and lock that."""
    lock, removed = fcntl.flock, 0

    def late(file: int, how: int) -> None:
        nonlocal removed
        if removed < 2:
            removed += 1
            (tmp_path / "sweep.lock").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with driving(tmp_path, None) as alone:
        assert alone
        assert removed == 2
        with pytest.raises(ConfigError, match="another sweep is writing"), driving(tmp_path, None):
            pass


def test_without_locks_nobody_is_sure_to_be_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    for shard in (None, Shard(1, 2)):
        with driving(tmp_path, shard) as alone:
            assert not alone


def test_a_short_look_at_a_lock_does_not_refuse_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 5.0)
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_SH); "
        "print('held', flush=True); time.sleep(0.3)"
    )
    path = tmp_path / "shard-1-of-2.lock"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        begun = time.monotonic()
        with driving(tmp_path, Shard(1, 2)):
            assert time.monotonic() - begun < 5
