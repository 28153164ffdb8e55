"""The public traces run through ``compare`` with all six policies of the main job."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

FOLDER = Path(os.environ.get("PREFILLSIM_TRACES") or Path(__file__).parents[2].parent / "shared" / "traces")

SIX = ("fcfs+full", "fcfs+fixed:chunk=64", "fcfs+fixed:chunk=256", "fcfs+fixed:chunk=1024", "sloweave", "vllm-default")

TRACES = {
    "AzureLLMInferenceTrace_code.csv": ["--rate-scale", "4"],
    "AzureLLMInferenceTrace_conv.csv": ["--rate-scale", "4"],
    "mooncake_conversation.jsonl": [],
    "mooncake_synthetic.jsonl": ["--rate-scale", "2"],
    "ragpulse_trace.jsonl": ["--rate-scale", "50"],
    "sharegpt_lengths.csv": ["--rate", "20", "--seeds", "2"],
}


@pytest.mark.real
@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("name", TRACES)
def test_a_public_trace_runs_with_all_policies(cli: Cli, name: str) -> None:
    file = FOLDER / name
    if not file.is_file():
        pytest.skip(f"the public trace {name} is not in {FOLDER}; set PREFILLSIM_TRACES to its folder")
    policies = [part for policy in SIX for part in ("-p", policy)]
    options = [*TRACES[name], "--limit", "150", "--slo", "ttft:1000,tpot_p99:25"]
    done = cli("compare", "--trace", str(file), *options, *policies, "--json")
    assert done.code == 0, done.err
    document = done.json
    assert list(document["policies"]) == list(SIX)
    assert document["failures"] == []
    assert document["requests"] == 150
    for metrics in document["policies"].values():
        for name_of_metric, estimate in metrics.items():
            assert estimate["mean"] is not None, name_of_metric
            assert (estimate["ci95"] == [None, None]) == ("--rate" not in TRACES[name])
        assert 0 <= metrics["slo_attainment"]["mean"] <= 1
        assert metrics["goodput"]["mean"] <= metrics["throughput"]["mean"]
    # Decode-only steps of 150 requests fit 25 ms, so nothing but prefill could break the objective.
    assert document["policies"]["sloweave"]["tpot_p99_ms"]["mean"] <= 25
