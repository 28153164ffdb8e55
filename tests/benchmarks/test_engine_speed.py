"""The engine's speed against a bare SimPy loop, each ratio measured in one run; ``make bench`` prints them."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from costmodels import load_cost_model
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from tests.benchmarks.bare import Bench, bare_timeouts, ratio_to_bare, seconds
from traces import Trace, arrivals
from traces.io import read_trace
from traces.synthetic import generate

pytestmark = pytest.mark.benchmarks

GOALS = Objectives.parse("ttft:1000,tpot_p99:25")
PAPER = load_cost_model("sloweave-paper")
POLICIES = ("vllm-default", "sarathi:budget=512", "fcfs+fixed:chunk=256", "fcfs+full", "sloweave")
ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("PREFILLSIM_TRACES", ROOT.parent / "shared" / "traces"))


def test_mixed_under_sloweave_with_all_records(bench: Bench) -> None:
    """At least 15 % of the bare loop, through the policy objects, every step and chunk on record."""
    trace, policy = generate("mixed", 0), parse_policy("sloweave")
    steps = len(simulate(trace, policy, PAPER, objectives=GOALS).steps["start_ns"])
    ratio = ratio_to_bare(lambda: simulate(trace, policy, PAPER, objectives=GOALS), steps, 60)
    bench(f"mixed/sloweave, all records, {steps} steps", f"{100 * ratio:.1f} % of a bare SimPy loop", ">= 15 %")
    assert ratio >= 0.15


def test_mixed_under_sloweave_with_every_metric(bench: Bench) -> None:
    """At least 10 % of the bare loop, with both tables expanded and summarised."""
    trace, policy = generate("mixed", 0), parse_policy("sloweave")

    def run() -> object:
        tables = simulate(trace, policy, PAPER, objectives=GOALS)
        return summarise(tables.requests, tables.steps, GOALS)

    steps = len(simulate(trace, policy, PAPER, objectives=GOALS).steps["start_ns"])
    ratio = ratio_to_bare(run, steps, 60)
    bench(f"mixed/sloweave, every metric, {steps} steps", f"{100 * ratio:.1f} % of a bare SimPy loop", ">= 10 %")
    assert ratio >= 0.10


@pytest.mark.parametrize("workload", ["chat", "mixed", "long", "bursty"])
@pytest.mark.parametrize(
    "name", ["vllm-default", "sarathi:budget=512", "fcfs+fixed:chunk=256", "fcfs+full", "sloweave"]
)
def test_every_policy_and_workload(workload: str, name: str, bench: Bench) -> None:
    """For the table alone."""
    trace, policy = generate(workload, 0), parse_policy(name)
    steps = len(simulate(trace, policy, PAPER, objectives=GOALS).steps["start_ns"])
    ratio = ratio_to_bare(lambda: simulate(trace, policy, PAPER, objectives=GOALS), steps, 15)
    bench(f"{workload}/{name}, {steps} steps", f"{100 * ratio:.1f} % of a bare SimPy loop")


@pytest.mark.parametrize("name", ["sloweave", "vllm-default"])
def test_a_decode_heavy_trace(name: str, bench: Bench) -> None:
    """Three times as fast as the bare loop: stretches of decodes are advanced in one go; tables come when asked for."""
    n = 1000
    trace = Trace(arrivals.poisson(n, 5.0, np.random.default_rng(0)), np.full(n, 256), np.full(n, 500))
    policy = parse_policy(name)
    steps = len(simulate(trace, policy, PAPER, objectives=GOALS).steps["start_ns"])
    ratio = ratio_to_bare(lambda: simulate(trace, policy, PAPER, objectives=GOALS), steps, 11)
    bench(f"decode-heavy/{name}, {steps} steps", f"{100 * ratio:.0f} % of a bare SimPy loop", ">= 300 %")
    assert ratio >= 3


@pytest.mark.real
def test_ten_thousand_azure_conversations(bench: Bench) -> None:
    """Less time than 2.5 million bare timeouts, with a token budget of 512."""
    path = TRACES / "AzureLLMInferenceTrace_conv.csv"
    if not path.is_file():
        pytest.skip(f"{path.name} is in neither $PREFILLSIM_TRACES nor ../shared/traces")
    trace = read_trace(path).limit(10_000)
    cost = load_cost_model(str(Path(__file__).parent / "azure-a100.json"))
    policy = parse_policy("sarathi:budget=512")
    timeouts = 200_000
    pairs = [
        seconds(lambda: simulate(trace, policy, cost).requests) / seconds(lambda: bare_timeouts(timeouts))
        for _ in range(3)
    ]
    millions = statistics.median(pairs) * timeouts / 1e6
    bench("azure conversation, 10,000 requests", f"{millions:.2f} million bare timeouts", "< 2.5")
    assert millions < 2.5


def test_a_million_chat_requests_fit_in_1_5_gb(bench: Bench) -> None:
    """Peak memory of a process that simulates one million requests, tables and summary included."""
    code = (
        "import resource\n"
        "from costmodels import load_cost_model\nfrom policies import parse_policy\nfrom sim.engine import simulate\n"
        "from sim.metrics import summarise\nfrom sim.objectives import Objectives\n"
        "from traces.synthetic import generate\n"
        "goals = Objectives.parse('ttft:1000,tpot_p99:25')\n"
        "trace = generate('chat', 0, 1_000_000)\n"
        "t = simulate(trace, parse_policy('sloweave'), load_cost_model('sloweave-paper'), objectives=goals)\n"
        "assert summarise(t.requests, t.steps, goals)['finished'] == 1_000_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    gigabytes = int(done.stdout) * 1024 / 1e9
    bench("memory of a million chat requests", f"{gigabytes:.2f} GB", "<= 1.5 GB")
    assert gigabytes <= 1.5
