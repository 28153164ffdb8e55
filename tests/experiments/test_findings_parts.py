"""What several questions are made of: numbers by tenant, lateness, counts of signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.axes import only_cell, plan
from experiments.draft import Draft
from experiments.findings.by_tenant import by_tenant, objectives_of, seconds
from experiments.findings.lines import band, counted, in_words, signs
from experiments.findings.questions.per_gap_or_cumulative import measured as lateness
from experiments.plotting import new_figure
from experiments.run import run_cell
from sim.metrics import Summary
from sim.stats import Interval
from sim.store import StoredRun, read_run


def run(folder: Path, policy: str, workload: str, slo: str, rate: float = 100.0) -> tuple[StoredRun, Summary]:
    draft = Draft()
    trace = {"trace.workload": workload, "trace.limit": 150, "trace.rate": rate}
    for key, value in {"policies": [policy], "slo": slo, "keep": "records", "seeds": [3], **trace}.items():
        draft.put(key, value, "test")
    cell = only_cell(plan(draft))
    result = run_cell(cell, folder, {})
    assert result.summary is not None
    return read_run(folder), result.summary


TENANTS = ("interactive", "batch")
CLASSES = "mixed:interactive_share=0.4,interactive_tpot=12,interactive_ttft=200"


@pytest.mark.parametrize("policy", ["sloweave", "vllm-default", "sloweave+queue-limit:limit=5"])
def test_tenants_add_up_to_the_whole(policy: str, tmp_path: Path) -> None:
    stored, summary = run(tmp_path / "run", policy, CLASSES, "ttft:1000,tpot_p99:25")
    found = by_tenant(stored)
    tenants = stored.requests["tenant"]
    assert set(tenants.tolist()) == set(TENANTS)
    assert seconds(stored) == pytest.approx(summary["duration_s"])
    total = {name: sum(v for k, v in found.items() if k.startswith(name)) for name in ("goodput", "rejected")}
    assert total["goodput"] == pytest.approx(summary["goodput"])
    assert total["rejected"] == summary["rejected"]
    met = sum(found[f"attainment_{t}"] * np.count_nonzero(tenants == t) for t in TENANTS)
    assert met / len(tenants) == pytest.approx(summary["slo_attainment"])
    ttft = {t: stored.requests["ttft_ns"][(tenants == t) & (stored.requests["ttft_ns"] >= 0)] / 1e6 for t in TENANTS}
    for tenant, ms in ttft.items():
        assert found[f"ttft_p99_{tenant}_ms"] == pytest.approx(np.percentile(ms, 99))
    mean = sum(found[f"ttft_mean_{t}_ms"] * len(ms) for t, ms in ttft.items()) / sum(map(len, ttft.values()))
    assert mean == pytest.approx(summary["ttft_mean_ms"])


def test_objectives_are_those_of_the_run(tmp_path: Path) -> None:
    stored, _ = run(tmp_path / "run", "sloweave", CLASSES, "ttft:700,tpot_p99:25")
    assert str(objectives_of(stored)) == "ttft:700,tpot_p99:25"


@pytest.mark.parametrize("policy", ["sloweave", "fcfs+deadline-sum", "fcfs+qoserve"])
def test_lateness_is_that_of_every_token(policy: str, tmp_path: Path) -> None:
    stored, summary = run(tmp_path / "run", policy, "mixed", "ttft:300,tpot_p99:9")
    requests, d, ttft = stored.requests, 9_000_000, 300_000_000
    ends = (stored.steps["start_ns"] + stored.steps["duration_ns"]).tolist()
    in_mean = due = 0
    for i in range(len(requests["arrival_ns"])):
        first, last = ends.index(requests["first_token_ns"][i]), ends.index(requests["finished_ns"][i])
        tokens = ends[first : last + 1]
        assert len(tokens) == requests["generated_tokens"][i]
        arrival = int(requests["arrival_ns"][i])
        if tokens[0] > arrival + ttft:
            continue
        in_mean += tokens[-1] - tokens[0] <= d * (len(tokens) - 1)
        due += all(t <= arrival + ttft + k * d for k, t in enumerate(tokens))
    found = lateness(stored)
    duration = summary["duration_s"]
    assert due > 0
    assert found["goodput_mean"] * duration == pytest.approx(in_mean)
    assert found["goodput_due"] * duration == pytest.approx(due)


def test_signs_leave_out_what_is_not_told_apart() -> None:
    known = [Interval(1, 0.5, 2), Interval(2, 1, 3), Interval(-1, -2, -0.1), Interval(1, -1, 3), Interval(0, 0, 0)]
    assert signs([*known, Interval(3, None, None)]) == (2, 1)
    assert counted(known) == "2 / 1"
    assert in_words(iter(known)) == "higher in 2 of 5 settings and lower in 1"


def test_a_band_leaves_out_what_was_not_measured() -> None:
    rows = [{"x": x, "y": y, "y_lo": y, "y_hi": y} for x, y in ((1, 0.5), (2, None), (3, 1.0))]
    with new_figure(3, 3) as figure:
        axis = figure.subplots()
        band(axis, rows, "x", "y", "black", "share", times=100)
        (line,) = axis.lines
        assert np.asarray(line.get_xydata()).tolist() == [[1, 50], [3, 100]]
