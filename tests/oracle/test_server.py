"""vLLM's API server with our scheduler on the CPU, one start of it, and vLLM's own benchmark as its client."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.model import tiny_llama
from gpu_runner.segments import StoredTelemetry, read_telemetry, runs_of
from gpu_runner.settings import KEY
from policies.units import MS, NS
from tests.benchmarks.bare import Bench

BLOCK = 32
IDLE, BURST, LOAD = 20, 60, 150
RHO = 0.7
LONGEST = 1024

PLUG_IN = """
from pathlib import Path
from policies import *

FAIL = Path({fail!r})

@register
class Mine(Chunking):
    name = "until-told"
    def grant(self, batch):
        if FAIL.exists():
            raise ValueError("told to fail")
        return Grant(128)
"""

CLIENT = """
import json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

port, model, idle, burst, load, rho = sys.argv[1:]

def run(name, n, rate, *more):
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    return main(parser.parse_args([
        "--backend", "vllm", "--port", port, "--model", model, "--dataset-name", "random",
        "--random-input-len", "96", "--random-output-len", "24", "--ignore-eos", "--disable-tqdm",
        "--ready-check-timeout-sec", "0", "--save-detailed", "--request-id-prefix", name, "--num-prompts", n,
        "--request-rate", str(rate), *more]))

results = {"idle": run("idle-", idle, "inf", "--max-concurrency", "1")}
results["burst"] = run("burst-", burst, "inf")
results["load"] = run("load-", load, float(rho) * int(burst) / results["burst"]["duration"])
keep = ("completed", "duration", "mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms",
        "total_output_tokens", "failed", "ttfts", "errors")
print(json.dumps({n: {k: r[k] for k in keep if k in r} for n, r in results.items()}))
"""


@dataclass
class Session:
    """What was done with one server, and what is left of it."""

    client: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    """The text of ``/metrics`` at different times."""
    streamed: int = 0
    """Tokens that the client which went away had got."""
    after: list[int] = field(default_factory=list)
    """Status codes after the policy has failed."""
    log: str = ""
    told: StoredTelemetry | None = None

    def rows(self, prefix: str) -> list[dict[str, Any]]:
        """Telemetry of the requests that one run of the client has sent."""
        assert self.told is not None
        return [r for r in self.told.requests.to_pylist() if f"-{prefix}-" in r["id"]]

    def value(self, when: str, name: str) -> float:
        """A metric's value, all labels together."""
        lines = [s.rsplit(" ", 1) for s in self.metrics[when].splitlines()]
        found = [float(v) for k, v in lines if k == name or k.startswith(name + "{")]
        assert found, f"{name} is not among the metrics"
        return sum(found)


class Server:
    """The server as a user would start it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail = folder / "fail"
        self.telemetry = folder / "telemetry"
        self.model = str(tiny_llama(folder / "model", layers=4, hidden=256))
        (folder / "mine.py").write_text(PLUG_IN.format(fail=str(self.fail)))
        (folder / "metrics").mkdir()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port: int = s.getsockname()[1]
        own = {
            "policy": "fcfs+until-told",
            "cost_model": "sloweave-paper",
            "slo": "tpot_p99:50",
            "plugins": [str(folder / "mine.py")],
            "telemetry": str(self.telemetry),
        }
        arguments = {
            "--model": self.model,
            "--load-format": "dummy",
            "--scheduler-cls": "gpu_runner.scheduler.PolicyScheduler",
            "--additional-config": json.dumps({KEY: own}),
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--max-model-len": str(LONGEST),
            "--max-num-seqs": "32",
            "--max-num-batched-tokens": "1056",
            "--block-size": str(BLOCK),
            "--shutdown-timeout": "30",
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # The client keeps idle connections for a minute; a server that closes one after 5 s loses the request that
            # is on its way then.
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"),
        }
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
            + [word for pair in arguments.items() for word in pair],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """One request; the status is 0 where nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def complete(self, outputs: int, **more: Any) -> int:
        """A request of 40 tokens, and its status."""
        body = {"model": self.model, "prompt": list(range(300, 340)), "max_tokens": outputs, "ignore_eos": True}
        return self.ask("POST", "/v1/completions", body | more)[0]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 600) -> None:
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the server has died:\n{self.read_log()[-3000:]}"
            assert time.monotonic() < end, f"it did not happen:\n{self.read_log()[-3000:]}"
            time.sleep(0.1)

    def read_log(self) -> str:
        """All that the server has said."""
        return (self.folder / "log").read_text(errors="replace")

    def go_away(self) -> int:
        """Stream a long answer, leave after some tokens, and return how many those were."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {
            "model": self.model,
            "prompt": list(range(300, 300 + 5 * BLOCK)),
            "max_tokens": LONGEST - 5 * BLOCK,
            "ignore_eos": True,
            "stream": True,
        }
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        got = 0
        while got < 20:
            got += response.readline().startswith(b"data: {")
        response.close()
        connection.close()
        return got

    def stop(self) -> None:
        """As an operator does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Everything is done once, and looked at afterwards."""
    folder = tmp_path_factory.mktemp("server")
    done = Session()
    server = Server(folder)
    try:
        server.wait_for(lambda: server.ask("GET", "/health")[0] == 200)
        for _ in range(3):
            assert server.complete(8) == 200
        (folder / "client.py").write_text(CLIENT)
        environment = {k: v for k, v in os.environ.items() if k != "PROMETHEUS_MULTIPROC_DIR"}
        numbers = [str(n) for n in (IDLE, BURST, LOAD, RHO)]
        client = subprocess.run(
            [sys.executable, str(folder / "client.py"), str(server.port), server.model, *numbers],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert client.returncode == 0, client.stderr[-3000:]
        done.client = json.loads(client.stdout.splitlines()[-1])
        time.sleep(1.5)
        done.metrics["loaded"] = server.ask("GET", "/metrics")[1]

        done.streamed = server.go_away()
        server.wait_for(lambda: 'prefillsim:requests_total{outcome="aborted"} 1.0' in server.ask("GET", "/metrics")[1])
        own = {"prefillsim_ttft_ms": 500, "prefillsim_tpot_ms": 20.5, "prefillsim_tenant": "gold"}
        assert server.complete(4, vllm_xargs=own) == 200

        server.fail.touch()
        done.after = [server.complete(8) for _ in range(5)]
        time.sleep(1.5)
        done.metrics["failed"] = server.ask("GET", "/metrics")[1]
        server.stop()
        done.log = server.read_log()
        (run,) = runs_of(server.telemetry)
        done.told = read_telemetry(run)
        yield done
    finally:
        server.kill()


def told_ms(row: dict[str, Any]) -> tuple[float, float]:
    """A request's TTFT and mean TPOT as telemetry has them."""
    rest = (row["left_ns"] - row["first_token_ns"]) / (row["generated_tokens"] - 1)
    return (row["first_token_ns"] - row["arrival_ns"]) / MS, rest / MS


@pytest.mark.parametrize(("run", "n"), [("idle", IDLE), ("burst", BURST), ("load", LOAD)])
def test_none_is_lost(session: Session, run: str, n: int) -> None:
    assert [error for error in session.client[run]["errors"] if error] == []
    assert session.client[run]["completed"] == n
    rows = session.rows(run)
    assert len(rows) == n
    assert {r["outcome"] for r in rows} == {"finished"}
    assert sum(r["generated_tokens"] for r in rows) == session.client[run]["total_output_tokens"]


@pytest.mark.parametrize("run", ["idle", "burst", "load"])
def test_no_first_token_comes_to_the_client_before_it_is_made(session: Session, run: str) -> None:
    """A request comes after the client has sent it, and its token is there before the client sees it."""
    ours = sorted(told_ms(row)[0] for row in session.rows(run))
    client = sorted(1000 * ttft for ttft in session.client[run]["ttfts"])
    assert all(mine < seen for mine, seen in zip(ours, client, strict=True))


@pytest.mark.benchmarks
def test_the_client_s_tpot_is_ours(session: Session, bench: Bench) -> None:
    """Within 5 %."""
    ours = statistics.mean(told_ms(r)[1] for r in session.rows("load"))
    client = session.client["load"]["mean_tpot_ms"]
    bench("TPOT of vLLM's client", f"{client:.3f} ms, telemetry {ours:.3f} ms, {client / ours - 1:+.1%}", "within 5 %")
    assert client == pytest.approx(ours, rel=0.05)


@pytest.mark.benchmarks
def test_the_client_s_ttft_is_ours_and_what_an_idle_server_adds(session: Session, bench: Bench) -> None:
    """Within 5 %, after taking off what 20 sequential requests saw more than our telemetry did."""
    ours = {run: statistics.mean(told_ms(r)[0] for r in session.rows(run)) for run in ("idle", "load")}
    offset = session.client["idle"]["mean_ttft_ms"] - ours["idle"]
    client = session.client["load"]["mean_ttft_ms"]
    rate = BURST / session.client["burst"]["duration"]
    told = f"{client:.2f} ms, {offset:.2f} of it when idle, telemetry {ours['load']:.2f}"
    over = f"{(client - offset) / ours['load'] - 1:+.1%}"
    bench(f"TTFT of vLLM's client at {RHO} of {rate:.1f}/s", f"{told}, {over}", "within 5 %")
    assert client - offset == pytest.approx(ours["load"], rel=0.05)


def test_a_client_that_disconnects_frees_its_blocks(session: Session) -> None:
    assert session.told is not None
    rows = session.told.requests.to_pylist()
    (gone,) = [r for r in rows if r["outcome"] == "aborted"]
    assert session.streamed <= gone["generated_tokens"] < LONGEST - 5 * BLOCK
    steps = [s for s in session.told.steps.to_pylist() if s["decided_ns"] > gone["left_ns"]]
    assert steps
    # One request at a time from then on, of 40 tokens and at most 8 more.
    assert max(s["kv_blocks"] for s in steps) <= 2


def test_objectives_come_with_a_request(session: Session) -> None:
    assert session.told is not None
    (own,) = [r for r in session.told.requests.to_pylist() if r["tenant"] == "gold"]
    assert (own["slo_ttft_ns"], own["slo_tpot_ns"]) == (500 * MS, 20_500_000)
    others = [r for r in session.told.requests.to_pylist() if r["tenant"] is None]
    assert {r["slo_tpot_ns"] for r in others} == {50 * MS}


def test_a_policy_that_fails_leaves_a_server_that_lives(session: Session) -> None:
    assert session.after == [200] * 5
    lines = [s for s in session.log.splitlines() if "took its place" in s or "takes its place" in s]
    assert len(lines) == 1
    assert "fcfs+until-told" in lines[0]
    assert "told to fail" in lines[0]
    assert session.told is not None
    assert session.told.info["fallback"] == "ValueError: told to fail"
    assert session.told.steps["fallback"].to_pylist()[-1]
    assert session.told.requests.to_pylist()[-1]["outcome"] == "finished"


def test_all_is_told_when_the_server_is_stopped(session: Session) -> None:
    assert session.told is not None
    assert session.told.info["complete"]
    steps = session.told.steps.to_pylist()
    assert [s["step"] for s in steps] == list(range(len(steps)))
    generated = sum(r["generated_tokens"] for r in session.told.requests.to_pylist())
    # A step gives a token to each that decodes, and to each that ends its prefill.
    assert generated <= sum(s["n_decode"] + s["n_prefill"] for s in steps)
    assert generated >= sum(s["n_decode"] for s in steps)


def test_metrics_are_beside_vllm_s_own(session: Session) -> None:
    assert session.value("loaded", "vllm:request_success_total") == session.value(
        "loaded", 'prefillsim:requests_total{outcome="finished"}'
    )
    assert session.value("loaded", "prefillsim:fallback") == 0
    assert session.value("failed", "prefillsim:fallback") == 1
    assert session.value("loaded", "prefillsim:step_seconds_count") == session.value("loaded", "prefillsim:steps_total")
    spent = session.value("loaded", "prefillsim:step_seconds_sum")
    rows = session.rows("load")
    assert 0 < spent < (max(r["left_ns"] for r in rows) - min(r["arrival_ns"] for r in session.rows("idle"))) / NS * 1.5
