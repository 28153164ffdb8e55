"""Joules in the results of runs whose hardware is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodels.energy import energy_summary, power_energy
from costmodels.hardware import load_gpu, load_llm
from sim.store import read_run

Cli = Callable[..., Any]

RUN = ("simulate", "--workload", "chat", "--limit", "30", "-p", "fcfs+full", "--json")


def test_joules_are_those_of_the_stored_steps(cli: Cli, tmp_path: Path) -> None:
    done = cli(*RUN, "--gpu", "h100-pcie", "--llm", "llama-3.1-8b", "--tp", "2", "--out", str(tmp_path / "r"))
    assert done.code == 0, done.err
    run = read_run(tmp_path / "r")
    model = power_energy(load_llm("llama-3.1-8b"), load_gpu("h100-pcie"), 2)
    duration = int(run.requests["finished_ns"].max() - run.requests["arrival_ns"].min())
    expected = energy_summary(run.steps, model, duration, 30, 30, 1)
    summary = done.json["summary"]
    assert {key: summary[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert model.idle_w < summary["power_mean_w"] < model.peak_w


@pytest.mark.parametrize(
    ("cost", "llm", "gpu", "gpus"),
    [("a100-qwen-32b-tp2", "qwen-32b-fp8", "a100-80", 2), ("l4-llama3.1-8b-estimated", "llama-3.1-8b", "l4", 1)],
)
def test_a_shipped_cost_model_says_what_it_was_fitted_for(
    cli: Cli, tmp_path: Path, cost: str, llm: str, gpu: str, gpus: int
) -> None:
    done = cli(*RUN, "--cost-model", cost, "--rate", "1", "--out", str(tmp_path / "r"))
    assert done.code == 0, done.err
    model = power_energy(load_llm(llm), load_gpu(gpu), gpus)
    assert model.idle_w < done.json["summary"]["power_mean_w"] < model.peak_w
    assert done.json["summary"]["energy_per_request_j"] == pytest.approx(done.json["summary"]["energy_j"] / 30)


def test_nothing_is_said_of_hardware_that_nobody_named(cli: Cli, tmp_path: Path) -> None:
    done = cli(*RUN, "--out", str(tmp_path / "r"))
    assert not [key for key in done.json["summary"] if "energy" in key or "power" in key]
