"""Shards: every cell in exactly one, all in one folder, and the same bytes as the whole sweep."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.config import ConfigError
from experiments.shards import Shard
from experiments.sweep import run_sweep
from tests.experiments.conftest import Cli
from tests.experiments.sweeping import command, planned, tables, toml


@given(st.integers(0, 300), st.integers(1, 40))
def test_shards_are_a_division_into_nearly_equal_parts(items: int, count: int) -> None:
    parts = [Shard(i, count).of(range(items)) for i in range(1, count + 1)]
    assert sorted(item for part in parts for item in part) == list(range(items))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 10**9 - 1), st.integers(1, 10**9 - 1))
def test_the_text_of_a_shard_is_what_is_read(index: int, count: int) -> None:
    if index <= count:
        assert Shard.parse(f"{index}/{count}") == Shard(index, count)
        assert str(Shard(index, count)) == f"{index}/{count}"
    else:
        with pytest.raises(ConfigError):
            Shard.parse(f"{index}/{count}")


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "1 / 4", "a/b", "1/1e9", "1/9999999999"]
)
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="it should be i/n with i from 1 to n"):
        Shard.parse(text)


def test_the_last_shard_writes_the_tables_of_the_whole(tmp_path: Path) -> None:
    experiment = planned(rate=[60, 90])
    whole = run_sweep(experiment, out=tmp_path / "whole")
    seen: set[str] = set()
    for i in (3, 1, 2):
        part = run_sweep(experiment, out=tmp_path / "shards", shard=Shard(i, 3))
        assert part.complete == (i == 2)
        assert part.reused == 0
        assert (tmp_path / "shards" / "summary.csv").exists() == part.complete
        if not part.complete:
            assert not seen & set(part.results)
            seen |= set(part.results)
    assert part.results == whole.results
    assert tables(tmp_path / "shards") == tables(tmp_path / "whole")
    index = json.loads((tmp_path / "shards" / "sweep.json").read_text())
    assert index == json.loads((tmp_path / "whole" / "sweep.json").read_text())
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {path.name for path in whole.out.iterdir()}


def test_a_shard_that_is_started_again_goes_on_and_resume_ends_the_whole(tmp_path: Path) -> None:
    experiment = planned(rate=[60, 90])
    out = tmp_path / "out"
    first = run_sweep(experiment, out=out, shard=Shard(1, 2))
    (damaged, *_) = first.results
    (out / "cells" / damaged / "summary.json").write_text("{}")
    again = run_sweep(experiment, out=out, shard=Shard(1, 2))
    assert again.results == first.results
    assert again.reused == 3
    whole = run_sweep(experiment, out=out, resume=True)
    assert whole.reused == 4
    assert tables(out) == tables(run_sweep(experiment, out=tmp_path / "other").out)


def test_a_cell_that_another_shard_has_left_damaged_is_not_in_the_tables(tmp_path: Path) -> None:
    experiment = planned(rate=[60, 90])
    out = tmp_path / "out"
    first = run_sweep(experiment, out=out, shard=Shard(1, 2))
    (damaged, *_) = first.results
    (out / "cells" / damaged / "steps.parquet").write_bytes(b"PAR1")
    assert not run_sweep(experiment, out=out, shard=Shard(2, 2)).complete
    assert not (out / "summary.csv").exists()
    assert run_sweep(experiment, out=out, resume=True).reused == 7


def test_shards_of_another_sweep_are_refused(tmp_path: Path) -> None:
    run_sweep(planned(), out=tmp_path / "out", shard=Shard(1, 2))
    with pytest.raises(ConfigError, match="is not the folder of this very sweep"):
        run_sweep(planned({"seeds": 3}), out=tmp_path / "out", shard=Shard(2, 2))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not the folder of this very sweep"):
        run_sweep(planned(), out=tmp_path / "mine", shard=Shard(2, 2))


def test_more_shards_than_cells(tmp_path: Path) -> None:
    experiment = planned({"seeds": 1})
    results = [run_sweep(experiment, out=tmp_path / "out", shard=Shard(i, 3)) for i in (1, 2, 3)]
    assert [len(r.results) for r in results] == [1, 2, 2]
    assert [r.complete for r in results] == [False, True, True]


def test_shards_at_the_same_time_share_the_work(tmp_path: Path) -> None:
    config = toml(tmp_path / "grid.toml", rate=[60, 90, 120])
    out = tmp_path / "out"
    running = [
        subprocess.Popen(command(config, out, "--shard", f"{i}/2", "--json"), stdout=subprocess.PIPE, text=True)
        for i in (1, 2)
    ]
    said = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert any(document["complete"] for document in said)
    assert all(document["reused"] == 0 for document in said)
    assert tables(out) == tables(run_sweep(planned(rate=[60, 90, 120]), out=tmp_path / "whole").out)
    assert {path.name for path in out.iterdir()} == {"cells", "summary.csv", "summary.parquet", "sweep.json"}


def test_the_command_says_how_far_the_shards_are(cli: Cli, tmp_path: Path) -> None:
    toml(tmp_path / "grid.toml", rate=[60, 90])
    listed = cli("sweep", "grid.toml", "--shard", "2/4", "--dry-run")
    assert listed.out.endswith("2 runs\n")
    first = cli("sweep", "grid.toml", "--shard", "2/4")
    assert first.code == 0
    assert "shard 2/4: 2 runs, 0 of them from before" in first.out
    (out,) = Path("runs").iterdir()
    assert f"2 of all 8 runs are finished in {out}" in first.out
    assert first.out.endswith(f"prefillsim sweep grid.toml --out {out} --resume\n")
    told = cli("sweep", "grid.toml", "--shard=1/4", "--json").json
    assert (told["complete"], told["shard"], told["runs"], told["finished"], told["of"]) == (False, "1/4", 2, 4, 8)
    last = cli("sweep", "grid.toml", "--out", str(out), "--resume")
    assert "8 runs, 4 of them from before" in last.out
    assert cli("sweep", "grid.toml", "--shard", "9/4").code == 2
