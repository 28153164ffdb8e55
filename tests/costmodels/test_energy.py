from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from costmodels.energy import (
    POWER,
    EnergyError,
    MeasuredEnergy,
    Steps,
    Watts,
    energy_summary,
    measured_energy,
    power_energy,
)
from costmodels.hardware import gpu_names, load_gpu, load_llm
from costmodels.kernels import compose_profile, step_grid
from costmodels.parallel import prefill_cost
from costmodels.profile import FEATURES, Profile
from costmodels.roofline import roofline
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from tests.seeded import cases, whole, wide
from traces import Trace

LLM, GPU = load_llm("llama-3.1-8b"), load_gpu("a100-80")


def columns(profile: Profile) -> Steps:
    return {c: profile.frame[c].to_numpy() for c in (*FEATURES, "duration_ns")}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return compose_profile(roofline(LLM, GPU), step_grid(chunks=(0, 16, 512, 2048)))


def one(duration_ns: int, tokens: int = 100) -> Steps:
    step = {"n_prefill": 1, "prefill_tokens": tokens, "prefill_pairs": tokens * (tokens + 1) // 2}
    return {c: np.array([step.get(c, 0)]) for c in FEATURES} | {"duration_ns": np.array([duration_ns])}


def test_power_lies_between_idle_and_peak(profile: Profile) -> None:
    model, steps = power_energy(LLM, GPU), columns(profile)
    watts = model.step_mj(steps) / (steps["duration_ns"] / 1e6)
    assert watts.min() >= model.idle_w
    assert watts.max() <= model.peak_w * (1 + 1e-12)
    assert 0 < model.utilisation(steps).min() < model.utilisation(steps).max() <= 1


def test_a_step_that_takes_long_for_its_work_costs_idle_power(profile: Profile) -> None:
    model = power_energy(LLM, GPU)
    second = 10**9
    assert model.step_mj(one(10**6 * second)) / 1e9 == pytest.approx(model.idle_w, rel=1e-3)
    assert model.step_mj(one(1000)) == pytest.approx(model.peak_w * 1e-3)


def test_reading_the_weights_alone_is_the_memory_share_of_a_decode() -> None:
    model = power_energy(LLM, GPU)
    seconds = 2 * LLM.weight_bytes / GPU.bandwidth_bytes_per_s
    step = {c: np.array([v]) for c, v in zip(FEATURES, (1, 0, 0, 0, 0, 0), strict=True)}
    share = model.utilisation({**step, "duration_ns": np.array([round(seconds * 1e9)])})[0]
    assert share == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("gpus", range(1, 9))
def test_power_grows_with_the_gpus(gpus: int) -> None:
    one_gpu, several = power_energy(LLM, GPU), power_energy(LLM, GPU, gpus)
    assert (several.idle_w, several.peak_w) == (gpus * one_gpu.idle_w, gpus * one_gpu.peak_w)
    # As many GPUs in as short a time use as much energy.
    assert several.step_mj(one(10**6, 900)) == pytest.approx(one_gpu.step_mj(one(gpus * 10**6, 900)))


def test_the_power_of_every_gpu_is_known_or_asked_for() -> None:
    assert set(gpu_names()) <= set(POWER)
    strange = replace(GPU, name="b300")
    with pytest.raises(EnergyError, match="power of GPU b300 is not known"):
        power_energy(LLM, strange)
    assert power_energy(LLM, strange, watts=Watts(100, 1000)).peak_w == 1000
    with pytest.raises(EnergyError, match="at least 1 GPU"):
        power_energy(LLM, GPU, 0)


@pytest.mark.parametrize(("idle", "peak"), [(-1, 5), (6, 5), (0, 0), (float("nan"), 5), (1, float("inf"))])
def test_impossible_powers_are_refused(idle: float, peak: float) -> None:
    with pytest.raises(EnergyError, match="idle must be from 0"):
        Watts(idle, peak)


def test_a_measured_energy_is_found_again(profile: Profile) -> None:
    truth = MeasuredEnergy(idle_w=60, coefficients=(50.0, 150.0, 2.0, 30.0, 0.5))
    energy = np.rint(truth.step_mj(columns(profile))).astype(np.int64)
    fitted = measured_energy(Profile(profile.frame.assign(energy_mj=energy), {"source": "a test"}), idle_w=60)
    np.testing.assert_allclose(fitted.step_mj(columns(profile)), energy, rtol=0.01)
    assert min(fitted.coefficients) >= 0


def test_an_outlier_does_not_bend_a_measured_energy(profile: Profile) -> None:
    energy = np.rint(0.2 * profile.frame["duration_ns"] / 1e3).astype(np.int64)
    rows = profile.frame.assign(energy_mj=energy)
    first = rows.iloc[:1].assign(repeat=1, duration_ns=30 * 10**9, energy_mj=1)
    fitted = measured_energy(Profile(pd.concat([first, rows]), {"source": "a test"}), idle_w=60)
    np.testing.assert_allclose(fitted.step_mj(columns(profile)), energy, rtol=0.01)


def test_without_energies_there_is_nothing_to_fit(profile: Profile) -> None:
    with pytest.raises(EnergyError, match="no column energy_mj"):
        measured_energy(profile, idle_w=60)
    zero = Profile(profile.frame.assign(energy_mj=0), {"source": "a test"})
    with pytest.raises(EnergyError, match="must be positive"):
        measured_energy(zero, idle_w=60)


@cases(100, wide(50, 1), wide(50), whole(1, 4), wide(10**10))
def test_goodput_times_joules_per_valid_request_is_the_mean_power(
    met: int, failed: int, replicas: int, idle_ns: int
) -> None:
    """As in every row of SLOWeave's Table 2."""
    model, steps = power_energy(LLM, GPU), one(50_000_000)
    span = 50_000_000 + idle_ns
    got = energy_summary(steps, model, span, met + failed, met, replicas)
    goodput = met / (span / 1e9)
    assert got["energy_per_met_request_j"] is not None
    assert got["energy_per_request_j"] is not None
    assert got["energy_j"] is not None
    assert goodput * got["energy_per_met_request_j"] == pytest.approx(got["power_mean_w"])
    assert got["energy_per_request_j"] * (met + failed) == pytest.approx(got["energy_j"])
    idle_j = model.idle_w * (replicas * span - 50_000_000) / 1e9
    assert got["energy_j"] == pytest.approx(float(model.step_mj(steps)[0]) / 1e3 + idle_j)


def test_nothing_is_null_and_not_zero() -> None:
    nothing = {c: np.empty(0, dtype=np.int64) for c in (*FEATURES, "duration_ns")}
    got = energy_summary(nothing, power_energy(LLM, GPU), 0, 0, 0)
    assert got == {
        "energy_j": 0.0,
        "power_mean_w": None,
        "energy_per_request_j": None,
        "energy_per_met_request_j": None,
    }


def test_a_summary_has_energy_where_it_has_a_model() -> None:
    trace = Trace(*(np.array(v, dtype=np.int64) for v in ([0, 10**8, 10**9], [200, 50, 3000], [5, 1, 20])))
    run = simulate(trace, parse_policy("fcfs+full"), prefill_cost(LLM, GPU))
    objectives = Objectives(ttft=100_000_000)
    model = power_energy(LLM, GPU)
    plain = summarise(run.requests, run.steps, objectives)
    got = summarise(run.requests, run.steps, objectives, energy=model)
    assert {k: v for k, v in got.items() if k in plain} == plain
    assert set(got) - set(plain) == {"energy_j", "power_mean_w", "energy_per_request_j", "energy_per_met_request_j"}
    assert got["arrived"] == 3
    assert got["goodput"] is not None
    assert got["energy_per_met_request_j"] is not None
    assert got["power_mean_w"] is not None
    assert got["goodput"] * got["energy_per_met_request_j"] == pytest.approx(got["power_mean_w"])
    assert model.idle_w < got["power_mean_w"] < model.peak_w
