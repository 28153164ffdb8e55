"""The command line: every wrong input is one sentence and status 2, and stdout holds one document or none."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main

Cli = Callable[..., Any]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

GOOD = ["--workload", "chat", "--limit", "20", "--seeds", "1"]

BAD_INPUT: list[tuple[list[str], str]] = [
    (["-p", "slowave"], "did you mean sloweave?"),
    (["-p", "fcfs+fxed"], "did you mean fixed?"),
    (["-p", "fcfs+fixed:chnk=3"], "did you mean chunk?"),
    (["-p", "fcfs+fixed:chunk=0"], "chunk=0"),
    (["-p", "fcfs+fixed:chunk=many"], "chunk=many"),
    (["-p", "fcfs"], "ordering"),
    (["-p", ""], "policy"),
    (["-p", "sloweave", "--slo", "tpot_p99:0.5"], "smaller than any step can be"),
    (["-p", "sloweave"], "give --slo tpot_p99:MS"),
    (["-p", "fcfs+full", "-p", "fcfs+full"], "given twice"),
    ([], "no policy: give at least one, like -p sloweave"),
    (["-p", "fcfs+full", "--rate", "0"], "--rate is 0.0, but it should be greater than 0"),
    (["-p", "fcfs+full", "--rate", "nan"], "--rate is nan, but it should be a finite number"),
    (["-p", "fcfs+full", "--rate", "fast"], "Invalid value for '--rate'"),
    (["-p", "fcfs+full", "--rate-scale", "-1"], "--rate-scale is -1.0, but it should be greater than 0"),
    (["-p", "fcfs+full", "--limit", "0"], "--limit is 0, but it should be greater than or equal to 1"),
    (["-p", "fcfs+full", "--seeds", "0"], "--seeds is 0, but the number of seeds should be at least 1"),
    (["-p", "fcfs+full", "--seed", "-1"], "Invalid value for '--seed'"),
    (["-p", "fcfs+full", "--horizon", "0"], "--horizon is 0.0"),
    (["-p", "fcfs+full", "--max-num-seqs", "0"], "--max-num-seqs is 0"),
    (["-p", "sarathi:budget=8", "--max-num-seqs", "9"], "budget=8 is below the 9 requests"),
    (["-p", "fcfs+full", "--slo", "tfft:3"], "did you mean ttft?"),
    (["-p", "fcfs+full", "--slo", "ttft:soon"], "should read ttft:MILLISECONDS"),
    (["-p", "fcfs+full", "--slo", "ttft:0"], "a positive number"),
    (["-p", "fcfs+full", "--workload", "mixd"], "did you mean mixed?"),
    (["-p", "fcfs+full", "--trace", "missing.csv"], "--workload and --trace exclude each other"),
    (["-p", "fcfs+full", "--cost-model", "slowweave-paper"], "did you mean sloweave-paper?"),
    (["-p", "fcfs+full", "--cost-model", "missing.json"], "missing.json"),
    (["-p", "fcfs+full", "--policy-cost-model", "nothing"], "unknown cost model nothing"),
    (["-p", "fcfs+full", "--kv-blocks", "0"], "blocks is 0, but a pool needs at least 2"),
    (["-p", "fcfs+full", "--kv-blocks", "-1"], "--kv-blocks is -1, but it should be greater than or equal to 0"),
    (["-p", "fcfs+full", "--kv-block-size", "0"], "--kv-block-size is 0, but it should be greater than or equal to 1"),
    (["-p", "fcfs+full", "--gpu", "h10", "--llm", "llama-3.1-8b"], "unknown GPU h10; did you mean h100"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "lama-3.1-8b"], "unknown model lama-3.1-8b; did you mean llama-3.1"),
    (["-p", "fcfs+full", "--gpu", "l4"], "hardware.gpu needs both a GPU and a model: give --llm too"),
    (["-p", "fcfs+full", "--tp", "2"], "hardware.tp needs both a GPU and a model: give --gpu and --llm too"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "qwen-32b-fp8"], "qwen-32b-fp8 does not fit l4"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "llama-3.1-8b", "--tp", "3"], "tp=3 does not divide"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "llama-3.1-8b", "--max-input", "90000"], "must lie between 1 and 2"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "llama-3.1-8b", "--pp", "2"], "pipeline parallelism is simulated"),
    (["-p", "fcfs+full", "--gpu", "l4", "--llm", "llama-3.1-8b", "--link", "nvlink"], "has no NVLink"),
    (["-p", "fcfs+full", "--mode", "hybird"], "did you mean hybrid?"),
    (["-p", "fcfs+full", "--memory", "stroe"], "did you mean store?"),
    (["-p", "fcfs+full", "--memory", "store"], "a store needs its size in blocks"),
    (["-p", "fcfs+full", "--memory", "store", "--kv-blocks", "9"], "a store holds no KV to decode with"),
    (["-p", "fcfs+full", "--kv-blocks", "9", "--suffix", "discard"], "suffix=discard is for regime=store"),
    (
        ["-p", "fcfs+full", "--memory", "store", "--kv-blocks", "9", "--suffix", "offload"],
        "suffix=offload needs memory.bytes_per_block and memory.pcie_gb_per_s",
    ),
    (["-p", "fcfs+full", "--suffix", "offload"], "suffix=offload is for regime=store"),
    (["-p", "fcfs+full", "--replicas", "0"], "--replicas is 0"),
    (["-p", "fcfs+full", "--replicas", "2", "--router", "afinity"], "did you mean prefix-affinity?"),
    (["-p", "fcfs+full", "--plugin", "missing.py"], "missing.py"),
    (["-p", "fcfs+full", "--set", "nonsense"], "--set 'nonsense' should read key=value"),
    (["-p", "fcfs+full", "--set", "trace.rte=3"], "unknown key trace.rte; did you mean rate?"),
    (["-p", "fcfs+full", "--config", "missing.toml"], "missing.toml: there is no such file"),
    (["-p", "fcfs+full", "--config", "broken.toml"], "broken.toml is not valid TOML"),
    (["-p", "fcfs+full", "--config", "unknown.toml"], "unknown.toml: unknown key seds; did you mean seeds?"),
    (["-p", "fcfs+full", "--out", "used"], "--out used exists and is not empty"),
    (["-p", "fcfs+full", "--out", "broken.toml"], "--out broken.toml is a file"),
    (["-p", "fcfs+full", "--out", "broken.toml/a/b"], "broken.toml is a file; give another folder"),
    (["-p", "fcfs+full", "--limit", "99999999999999999999"], "--limit is 99999999999999999999"),
    (["-p", "fcfs+full", "--seeds", "2", "--rate", "1e-300"], "the rate is so low"),
    (["-p", "fcfs+full", "--sede", "1"], "No such option: --sede"),
    (["-p", "fcfs+full", "extra"], "extra"),
]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "broken.toml").write_text("[trace\n")
    (tmp_path / "unknown.toml").write_text("seds = 3\n")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    return tmp_path


def assert_refused(done: Any, reason: str, folder: Path, before: set[Path]) -> None:
    assert done.code == 2
    assert done.err.startswith("prefillsim: ")
    assert done.err.count("\n") == 1
    assert reason in done.err
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(("arguments", "reason"), BAD_INPUT)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    cli: Cli, inputs: Path, arguments: list[str], reason: str
) -> None:
    before = set(inputs.rglob("*"))
    done = cli("compare", *GOOD, *arguments)
    assert_refused(done, reason, inputs, before)
    assert done.out == ""
    again = cli("compare", *GOOD, *arguments, "--json")
    assert_refused(again, reason, inputs, before)
    assert again.json == {"error": again.err.removeprefix("prefillsim: ").rstrip("\n")}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        (AZURE, "no requests"),
        ("a,b\n1,2\n", "columns"),
        (AZURE + "2023-11-16 18:15:46.0000000,0,5\n", "bad.csv, line 2, column ContextTokens"),
        (AZURE + "2023-11-16 18:15:46.0000000,5,NaN\n", "bad.csv, line 2, column GeneratedTokens"),
        (AZURE + "yesterday,5,5\n", "bad.csv, line 2, column TIMESTAMP"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n{"timest', "line 2"),
        ("\x00\x01\x02\x03", "bad.csv"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "simulate"])
def test_a_bad_trace_is_one_sentence_with_file_line_and_column(
    cli: Cli, tmp_path: Path, command: str, content: str, reason: str
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    before = set(tmp_path.rglob("*"))
    done = cli(command, "--trace", "bad.csv", "-p", "fcfs+full")
    assert_refused(done, reason, tmp_path, before)
    assert "bad.csv" in done.err


@pytest.mark.parametrize("command", ["compare", "simulate"])
def test_a_missing_trace_or_none_is_refused(cli: Cli, tmp_path: Path, command: str) -> None:
    assert_refused(
        cli(command, "--trace", "no.csv", "-p", "fcfs+full"), "no.csv: there is no such file", tmp_path, set()
    )
    assert_refused(cli(command, "-p", "fcfs+full"), "no trace: give one of --workload NAME and", tmp_path, set())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["compar"], "Did you mean 'compare'?"),
        (["--verbose"], "No such option: --verbose"),
        (["sweep"], "Missing argument 'FILE.toml'"),
        (["sweep", "missing.toml"], "missing.toml: there is no such file"),
        (["sweep", "unknown.toml"], "unknown.toml: unknown key seds"),
        (["sweep", "unknown.toml", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["simulate", *GOOD[:4], "-p", "fcfs+full", "-p", "sloweave"], "give one, with -p"),
        (
            ["simulate", *GOOD[:4], "-p", "fcfs+full", "--out", "used"],
            "--out used exists and is not empty; give another",
        ),
        (["simulate", *GOOD[:4], "-p", "fcfs+full", "--resume"], "No such option: --resume"),
        (["simulate", *GOOD[:4], "-p", "fcfs+full", "--set", "keep=nothing"], "--set keep is 'nothing'"),
        (["simulate", *GOOD[:4], "-p", "fcfs+full", "--set", "seeds=0"], "--set seeds is 0, but the number"),
        (["policies", "show", "fcsf"], "did you mean fcfs?"),
        (["policies", "check", "sloweav"], "did you mean sloweave?"),
        (["policies", "check", "missing.py"], "missing.py"),
        (["trace", "info", "missing.csv"], "missing.csv"),
        (["trace", "info", "--workload", "chta"], "did you mean chat?"),
        (["trace", "generate", "--workload", "chat", "--out", "unknown.toml"], "unknown.toml exists; give a new file"),
        (["trace", "generate", "--workload", "chat", "--out", "x.xyz"], "x.xyz"),
        (["trace", "generate", "--workload", "chat", "--out", "new", "--to", "csv"], "format csv cannot be written"),
        (["trace", "generate", "--workload", "chat", "--out", "new", "--to-block-size", "0"], "least 1 token, not 0"),
        (["trace", "generate", "--workload", "chat", "--out", "no/x.parquet"], "no is not a folder"),
        (["trace", "generate", "--workload", "chat", "--limit", "0", "--out", "x.parquet"], "--limit is 0"),
        (["trace", "convert", "missing.csv", "x.parquet"], "missing.csv"),
        (["trace", "lint", "--format", "azur", "unknown.toml"], "did you mean azure?"),
    ],
)
def test_other_commands_refuse_in_one_sentence_too(cli: Cli, inputs: Path, arguments: list[str], reason: str) -> None:
    assert_refused(cli(*arguments), reason, inputs, set(inputs.rglob("*")))


PRINTS = "print('noise')\n"

ANSWERS = {
    "chunking": ("fcfs+{}", "    def grant(self, batch):\n        {}\n"),
    "admission": ("fcfs+full+{}", "    def admit(self, request, load):\n        {}\n"),
    "ordering": ("{}+full", "    def key(self, request):\n        {}\n"),
}


def plugin(tmp_path: Path, kind: str, body: str, name: str) -> str:
    """Write a plug-in that prints when it is loaded and does ``body`` when it is asked; return its policy."""
    policy, method = ANSWERS[kind]
    (tmp_path / "mine.py").write_text(
        PRINTS
        + f"import sys\nfrom policies import {kind.title()}, register\n\n@register\nclass Mine({kind.title()}):\n"
        + f"    'Odd.'\n    name = '{name}'\n    source = 'test'\n\n"
        + method.format(body)
    )
    return policy.format(name)


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("chunking", "return None", "gave an answer that stopped the simulator"),
        ("chunking", "return (1.5, 1, None, False)", "gave an answer that stopped the simulator"),
        ("admission", "return None", "gave an answer that stopped the simulator"),
        ("ordering", "sys.exit(3)", "SystemExit: 3"),
        ("ordering", "raise GeneratorExit", "GeneratorExit"),
    ],
)
@pytest.mark.usefixtures("no_picture")
def test_what_no_simulator_can_carry_out_is_the_plugins_error(
    cli: Cli, tmp_path: Path, kind: str, body: str, reason: str
) -> None:
    policy = plugin(tmp_path, kind, body, f"cli-odd-{kind}")
    command = [*GOOD[:4], "--plugin", "mine.py", "-p", policy, "--json"]
    single = cli("simulate", *command, "--out", "single")
    assert single.code == 2
    assert reason in single.json["error"]
    assert not (tmp_path / "single").exists()
    several = cli("compare", *command, "--seeds", "1", "--set", "keep=summary")
    assert several.code == 1
    assert reason in several.json["failures"][0]
    checked = cli("policies", "check", "mine.py", "--json")
    assert checked.code == 1
    assert not checked.json["ok"]


def test_what_a_plugin_prints_is_not_on_stdout(cli: Cli, tmp_path: Path) -> None:
    policy = plugin(tmp_path, "ordering", "print('asked'); return request.arrival_ns", "cli-prints")
    done = cli("simulate", *GOOD[:4], "--plugin", "mine.py", "-p", policy, "--json")
    assert done.json["policy"] == policy
    assert done.err.startswith("noise\nasked\n")
    assert cli("policies", "list", "--plugin", "mine.py", "--json").json["parts"]
    assert cli("policies", "check", "mine.py", "--json").json["ok"]


@pytest.mark.parametrize("method", ["reset(self, predictor)", "grant(self, batch)", "deadline_ns(self, request)"])
def test_an_error_in_a_plugin_is_one_sentence_with_file_and_line(cli: Cli, tmp_path: Path, method: str) -> None:
    name = f"cli-{method.partition('(')[0]}"
    (tmp_path / "mine.py").write_text(
        "from policies import Chunking, register\n\n@register\nclass Mine(Chunking):\n    'Fails.'\n"
        f"    name = '{name}'\n\n    def grant(self, batch):\n        return (10, 1, None, False)\n\n"
        f"    def {method}:\n        raise KeyError('mine')\n"
    )
    command = [*GOOD[:4], "--plugin", "mine.py", "-p", f"fcfs+{name}", "--out", "out"]
    before = set(tmp_path.rglob("*"))
    assert_refused(cli("simulate", *command), "mine.py, line 12: KeyError: 'mine'", tmp_path, before)


def test_a_full_disk_is_one_sentence_that_says_what_is_kept(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sim import store

    real = store.atomic_write

    def fills_up(path: Path, content: Any) -> None:
        if "cells" in path.parts and len(list(tmp_path.glob("out/cells/[!.]*"))) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(store, "atomic_write", fills_up)
    command = ["compare", *GOOD, "--seeds", "5", "-p", "fcfs+full", "--out", "out"]
    done = cli(*command)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith("prefillsim: no space left on device while writing results; 2 of 5 runs are finished")
    assert "prefillsim compare" in done.err
    assert done.err.rstrip().endswith("--out out --resume")
    assert len(list(tmp_path.glob("out/cells/*"))) == 2


def test_a_full_disk_leaves_no_folder_of_a_single_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("sim.store.atomic_write", full)
    done = cli("simulate", *GOOD[:4], "-p", "fcfs+full", "--out", "out")
    assert done.code == 2
    assert "no space left on device while writing" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_has_its_tables_summary_and_provenance(cli: Cli, tmp_path: Path) -> None:
    command = ["simulate", *GOOD[:4], "-p", "sloweave", "--slo", "tpot_p99:25", "--seed", "3", "--out", "run"]
    document = cli(*command, "--batches", "--json").json
    assert document["files"] == ["batches.parquet", "requests.parquet", "run.json", "steps.parquet", "summary.json"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == document["summary"]
    assert document["summary"]["finished"] == 20
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["seed"] == 3
    assert info["policy"] == "sloweave"
    assert {"git", "packages", "python", "resolved", "trace_hash", "cost_model_hash", "wall_s"} <= info.keys()
    shown = cli(*command[:-1], "again")
    assert "goodput" in shown.out
    assert shown.out.rstrip().endswith("results: again")


def test_a_sweep_can_be_listed_without_running_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'policies = ["prefillonly"]\nseeds = 2\n[trace]\nworkload = "chat"\nlimit = 9\n[sweep]\nlam = [0, 5]\n'
    )
    document = cli("sweep", "grid.toml", "--dry-run", "--json").json
    assert document["name"] == "grid"
    assert document["cells"] == [f"prefillonly on chat, seed {s}, lam={lam}" for lam in (0, 5) for s in (0, 1)]
    assert {path.name for path in tmp_path.iterdir()} == {"grid.toml"}
    done = cli("sweep", "grid.toml", "--seeds", "1", "--set", "keep=summary", "--json").json
    assert [(p["lam"], len(p["goodput"]["per_seed"])) for p in done["points"]] == [(0, 1), (5, 1)]
    shown = cli("sweep", "grid.toml", "--out", "again")
    assert "4 runs, 0 of them from before" in shown.out


def test_version_and_help(cli: Cli) -> None:
    from importlib.metadata import version

    assert cli("--version").out == f"prefillsim {version('prefillsim')}\n"
    for command in (["--help"], ["compare", "--help"], ["trace", "--help"], ["policies", "check", "--help"]):
        done = cli(*command)
        assert done.code == 0
        assert "Usage: prefillsim" in done.out
    assert "--rate-scale" in cli("compare", "--help").out


def test_help_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from experiments.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'numpy', 'pandas', 'scipy', 'matplotlib', 'pyarrow', 'simpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_file_where_results_go_is_no_endless_search(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    done = cli("simulate", *GOOD[:4], "-p", "fcfs+full")
    assert (done.code, done.err) == (2, "prefillsim: is not a folder: runs\n")


def test_an_interrupt_is_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.run.simulate", interrupt)
    done = cli("simulate", *GOOD[:4], "-p", "fcfs+full", "--json")
    assert (done.code, done.json) == (130, {"error": "interrupted; nothing is kept"})
    assert done.err == "prefillsim: interrupted; nothing is kept\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_results_that_stdout_cannot_take_are_one_sentence() -> None:
    command = [sys.executable, "-m", "experiments.cli", "policies", "show", "fcfs"]
    for extra in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*command, *extra], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "prefillsim: no space left on device while writing results\n"


@pytest.mark.parametrize("printed", ["show fcfs --json", "list"])
def test_a_reader_that_stops_early_is_no_error(printed: str) -> None:
    """It has gone before anything is printed: what little there is at the end, and more than is kept until then."""
    command = f"{sys.executable} -m experiments.cli policies {printed} | true; exit ${{PIPESTATUS[0]}}"
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], env=buffered, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m experiments.cli policies show fcfs >&- 2>&-"
    subprocess.run(["bash", "-c", command], check=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_where_stderr_cannot_be_written_the_status_is_the_same() -> None:
    command = f"{sys.executable} -m experiments.cli policies show no-such-policy 2>/dev/full"
    assert subprocess.run(["bash", "-c", command], stdout=subprocess.DEVNULL, check=False).returncode == 2


@pytest.mark.usefixtures("no_picture")
def test_file_names_need_not_be_utf_8(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "t\udcff.csv"
    try:
        trace.write_bytes((Path(__file__).parents[1] / "data" / "azure_2023.csv").read_bytes())
    except OSError:
        pytest.skip("this file system has no such names")
    Path("b\udcff.toml").write_text("policies = ['fcfs+full']\n[trace]\nworkload = 'mixed'\nlimit = 5\n")
    assert cli("simulate", "--trace", str(trace), "-p", "fcfs+full", "--out", "run").code == 0
    assert cli("compare", "--trace", str(trace), "-p", "fcfs+full", "--out", "compared").code == 0
    assert "t\\udcff.csv" in (tmp_path / "compared" / "summary.csv").read_text()
    assert cli("regress", "b\udcff.toml", "--update").code == 0
    assert cli("regress", "b\udcff.toml", "--markdown", "m.md", "--junit", "j.xml").code == 0
    assert "b?.toml" in Path("m.md").read_text()


def test_a_narrow_encoding_is_no_error(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "policies", "show", "sloweave"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "deadline-fill" in done.stdout


def test_an_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("experiments.axes.plan", broken)
    with pytest.raises(KeyError, match="ours"):
        main(["compare", *GOOD, "-p", "fcfs+full"])
