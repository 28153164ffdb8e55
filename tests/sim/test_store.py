"""Run folders: round trip, nulls, equal bytes, and every way in which a folder may be wrong."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import sim.provenance
import sim.store
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.provenance import cost_model_hash, provenance
from sim.records import NULL, OUTCOMES, Columns, Tables
from sim.store import StoreError, atomic_write, read_run, write_run
from tests.seeded import either, seeded
from tests.sim.example import COST, GOALS, example_run
from tests.sim.random_runs import engine_run, memory_run
from traces import Trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stored run."""
    trace, tables = example_run()
    write_run(tmp_path / "run", trace, tables, {"note": "λ = 500"}, objectives=GOALS, batches=True)
    return tmp_path / "run"


def assert_same(stored: Columns, memory: Columns) -> None:
    for name, column in memory.items():
        assert stored[name].dtype == column.dtype, name
        np.testing.assert_array_equal(stored[name], column, err_msg=name)


@settings(max_examples=50, deadline=None)
@given(seeded(either(engine_run, memory_run)))
def test_a_run_read_back_is_the_run(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[Trace, Tables, Objectives]
) -> None:
    trace, tables, goals = run
    folder = tmp_path_factory.mktemp("round") / "trip"
    info = {"seed": 3, "nested": {"list": [1, None, "é"]}}
    write_run(folder, trace, tables, info, objectives=goals)
    stored = read_run(folder)
    assert_same(stored.requests, tables.requests)
    assert_same(stored.steps, tables.steps)
    assert_same(stored.preemptions, tables.preemptions)
    assert (folder / "preemptions.parquet").exists() == (len(tables.preemptions["step"]) > 0)
    assert stored.info == info
    assert stored.batches is None
    assert stored.requests["id"].tolist() == trace.ids.tolist()
    for name in ("tenant", "session"):
        assert (name in stored.requests) == (getattr(trace, name) is not None)
        if name in stored.requests:
            assert stored.requests[name].tolist() == getattr(trace, name).tolist()
    reasons = {i: reason for i, reason in enumerate(stored.requests["reason"].tolist()) if reason is not None}
    assert reasons == tables.reasons
    summary = summarise(stored.requests, stored.steps, goals, stored.preemptions)
    assert summary == summarise(tables.requests, tables.steps, goals, tables.preemptions)
    assert summary == json.loads((folder / "summary.json").read_text())


def test_the_example_has_every_kind_of_row() -> None:
    _, tables = example_run()
    assert {OUTCOMES[code] for code in tables.requests["outcome"]} == {"finished", "rejected", "unfinished"}


def test_the_files_have_nulls_where_nothing_was_measured(folder: Path) -> None:
    _, tables = example_run()
    requests = pq.read_table(folder / "requests.parquet")
    steps = pq.read_table(folder / "steps.parquet")
    assert requests.column_names[:3] == ["id", "tenant", "session"]
    for name, column in tables.requests.items():
        missing = int(np.isnan(column).sum()) if column.dtype.kind == "f" else int((column == NULL).sum())
        assert requests[name].null_count == missing, name
    for table in (requests, steps):
        for column in table.columns:
            assert not any(v == NULL or v != v for v in column.to_pylist())
    assert steps["kv_blocks"].null_count == len(steps)
    assert steps["decided_ns"] == steps["start_ns"]
    assert set(steps["replica"].to_pylist()) == {0}
    assert steps["step"].to_pylist() == list(range(len(steps)))
    assert sorted(set(requests["outcome"].to_pylist())) == ["finished", "rejected", "unfinished"]
    rejected = [o == "rejected" for o in requests["outcome"].to_pylist()]
    assert [r is not None for r in requests["reason"].to_pylist()] == rejected
    assert requests.schema.metadata[b"prefillsim_format"] == b"1"


def test_an_empty_trace_can_be_stored(tmp_path: Path) -> None:
    nothing = np.empty(0, dtype=np.int64)
    trace = Trace(nothing, nothing, nothing)
    tables = simulate(trace, parse_policy("fcfs+full"), COST)
    write_run(tmp_path / "run", trace, tables, {}, batches=True)
    stored = read_run(tmp_path / "run")
    assert_same(stored.requests, tables.requests)
    assert stored.batches is not None
    assert len(stored.batches["step"]) == 0


@settings(max_examples=60, deadline=None)
@given(seeded(either(engine_run, memory_run)))
def test_batches_are_vllm_s_list_of_running_requests(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[Trace, Tables, Objectives]
) -> None:
    """Those preempted leave it, and come back at its end."""
    trace, tables, _ = run
    folder = tmp_path_factory.mktemp("batches") / "run"
    write_run(folder, trace, tables, {}, batches=True)
    batches = read_run(folder).batches
    assert batches is not None
    prefills: dict[int, dict[int, int]] = {}
    for step, request, tokens in zip(*(tables.chunks[c].tolist() for c in ("step", "request", "tokens")), strict=True):
        prefills.setdefault(step, {})[request] = tokens
    lost = set(zip(*(tables.preemptions[name].tolist() for name in ("step", "request")), strict=True))
    resumed = set(zip(*(tables.preemptions[name].tolist() for name in ("until", "request")), strict=True))
    running: list[int] = []
    decoding: set[int] = set()
    expected = []
    ends = (tables.steps["start_ns"] + tables.steps["duration_ns"]).tolist()
    of_replica = tables.steps["replica"].tolist()
    emitted = dict.fromkeys(range(len(trace)), 0)
    first, ids, outputs = (c.tolist() for c in (tables.requests["first_token_ns"], trace.ids, trace.output_tokens))
    for step, end in enumerate(ends):
        if step and of_replica[step] != of_replica[step - 1]:
            running, decoding = [], set()
        gone = {r for r in running if (step, r) in lost}
        running = [r for r in running if r not in gone]
        decoding -= gone
        prefill = prefills.get(step, {})
        running += [request for request in prefill if request not in running]
        batch = [(r, prefill.get(r, 1)) for r in running if r in prefill or r in decoding]
        expected += [(step, p, ids[r], tokens) for p, (r, tokens) in enumerate(batch)]
        decoding |= {r for r in prefill if (step, r) in resumed or (first[r] == end and not emitted[r])}
        for r, _ in batch:
            emitted[r] += r in decoding
        running = [r for r in running if emitted[r] < outputs[r]]
    columns = (batches[name].tolist() for name in ("step", "position", "request", "tokens"))
    assert list(zip(*columns, strict=True)) == expected
    assert list(emitted.values()) == tables.requests["generated_tokens"].tolist()


HASH = """
import hashlib, sys
from pathlib import Path
from tests.sim.example import GOALS, example_run
from sim.store import write_run
folder = Path(sys.argv[1])
write_run(folder, *example_run(), {"seed": 0}, objectives=GOALS, batches=True)
print({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())})
"""


def test_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Case 13 (inference-sim#965, LLMServingSim PR 43), for one run: PYTHONHASHSEED 0, 1 and 2."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HASH, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2")
    ]
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert outputs[0].count("parquet") == 3
    assert outputs[0] == outputs[1] == outputs[2]


def test_two_writers_in_one_folder_do_not_clash(tmp_path: Path) -> None:
    """Case 13 (LLMServingSim PR 43): two runs at once in one folder."""
    trace, tables = example_run()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(5):
                write_run(tmp_path / "run", trace, tables, {}, batches=True)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_same(read_run(tmp_path / "run").requests, tables.requests)
    assert len(list((tmp_path / "run").iterdir())) == 5


def test_a_later_run_replaces_an_earlier_one(folder: Path) -> None:
    trace, tables = example_run(horizon_ns=None)
    write_run(folder, trace, tables, {"seed": 1})
    stored = read_run(folder)
    assert_same(stored.requests, tables.requests)
    assert stored.batches is None
    assert stored.info == {"seed": 1}
    assert not (folder / "batches.parquet").exists()


def edit_run_json(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        head = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**head, **changes}))

    return edit


def damage(folder: Path) -> None:
    content = bytearray((folder / "steps.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "steps.parquet").write_bytes(content)


def truncate(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def remove(*names: str) -> Callable[[Path], None]:
    def unlink(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return unlink


def no_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def a_file(folder: Path) -> None:
    no_folder(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_folder, "there is no folder .*run"),
        (a_file, "run is not a folder"),
        (
            remove(*sorted(("run.json", "summary.json", "requests.parquet", "steps.parquet"))),
            "is not a run: it has no run",
        ),
        (remove("run.json"), "not a complete run: run.json is missing, so the run was interrupted"),
        (remove("steps.parquet"), "not a complete run: steps.parquet is missing"),
        (remove("batches.parquet"), "not a complete run: batches.parquet is missing"),
        (truncate("run.json"), "run.json is not JSON"),
        (truncate("requests.parquet"), "requests.parquet is not the file that run.json describes"),
        (damage, "steps.parquet is not the file that run.json describes"),
        (edit_run_json(format="vllm"), "run.json does not describe a run: its format is not 'prefillsim run'"),
        (edit_run_json(version=2), "run.json is of version 2; this prefillsim reads version 1 and older"),
        (edit_run_json(version="x"), "run.json is of version x; this prefillsim reads version 1"),
        (edit_run_json(files=None), "run.json does not list the files of the run"),
        (edit_run_json(files={}), "requests.parquet is not the file that run.json describes"),
        (lambda folder: (folder / "run.json").write_text("[1]"), "run.json does not describe a run"),
    ],
)
def test_a_wrong_folder_is_one_clear_error(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    with pytest.raises(StoreError, match=message) as error:
        read_run(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("info", [{"files": 1}, {"version": 1}, {"rate": float("nan")}])
def test_info_must_be_json_beside_the_format_s_keys(tmp_path: Path, info: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"belongs to its format|not JSON compliant"):
        write_run(tmp_path / "run", *example_run(), info)
    with pytest.raises(TypeError):
        write_run(tmp_path / "run", *example_run(), {"path": tmp_path})
    assert not (tmp_path / "run").exists()


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Let the kernel refuse writes beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_refused_write_leaves_nothing(tmp_path: Path, small_files: Callable[[int], None]) -> None:
    run = example_run()
    write_run(tmp_path / "size", *run, {}, batches=True)
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "size").iterdir()}
    largest = max(sizes.values())
    old = tmp_path / "old.bin"
    old.write_bytes(b"old")
    small_files(largest - 1)
    with pytest.raises(OSError, match="File too large"):
        write_run(tmp_path / "run", *run, {}, batches=True)
    with pytest.raises(OSError, match="File too large"):
        atomic_write(old, bytes(largest))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.bin", "size"]
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("exists", [False, True])
def test_a_disk_that_fills_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, exists: bool
) -> None:
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
        (folder / "notes.txt").write_text("the user's own")
    written: list[Path] = []

    def fill(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
        if len(written) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        written.append(path)
        atomic_write(path, content)

    monkeypatch.setattr(sim.store, "atomic_write", fill)
    with pytest.raises(OSError, match="No space left"):
        write_run(folder, *example_run(), {}, batches=True)
    assert len(written) == nth
    assert [p.name for p in tmp_path.rglob("*")] == (["run", "notes.txt"] if exists else [])


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_function_that_fails_half_way_leaves_the_old_file(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "table.csv"
    atomic_write(path, b"old")

    def half(file: BinaryIO) -> None:
        file.write(b"new, but only ha")
        raise failure

    with pytest.raises(type(failure)):
        atomic_write(path, half)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    atomic_write(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


def test_the_error_names_the_file_and_not_its_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "table.csv"):
        with pytest.raises(OSError, match=r".") as caught:
            atomic_write(path, b"content")
        assert caught.value.filename == str(path)
        assert caught.value.filename2 is None


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_provenance_knows_revision_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    git(root, "init", "--quiet")
    (root / "code.py").write_text("1")
    git(root, "add", "code.py")
    git(root, "commit", "--quiet", "-m", "first")
    (root / "installed").mkdir()
    for folder, change, dirty in ((root, "1", False), (root, "2", True), (root / "installed", "2", None)):
        sim.provenance._git.cache_clear()
        (root / "code.py").write_text(change)
        (root / "results.txt").write_text("untracked files are no change")
        monkeypatch.setattr(sim.provenance, "ROOT", folder)
        found = provenance()["git"]
        assert found["dirty"] is dirty
        assert (found["revision"] is None) == (dirty is None)
    sim.provenance._git.cache_clear()


@pytest.mark.parametrize("path", ["", None])
def test_provenance_without_repository_or_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    sim.provenance._git.cache_clear()
    monkeypatch.setattr(sim.provenance, "ROOT", tmp_path)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert provenance()["git"] == {"revision": None, "dirty": None}
    sim.provenance._git.cache_clear()


def test_provenance_is_json_with_versions() -> None:
    found = provenance()
    assert found["packages"]["numpy"] == np.__version__
    assert json.loads(json.dumps(found)) == found


def test_the_hash_of_a_cost_model_is_that_of_its_content() -> None:
    assert cost_model_hash(COST) == cost_model_hash(replace(COST))
    assert cost_model_hash(COST) != cost_model_hash(replace(COST, step=6))
