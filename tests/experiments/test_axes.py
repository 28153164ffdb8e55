"""Sweeps taken apart: the product of the axes, its order, and cells that are the same exactly when they must be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.axes import Experiment, only_cell, plan
from experiments.config import ConfigError
from experiments.draft import Draft
from policies.base import PolicyError
from traces.schema import TraceError

SMALL = {"trace.workload": "chat", "trace.limit": 5, "policies": ["fcfs+full"], "seeds": [0]}


def planned(values: dict[str, Any] | None = None, **axes: Any) -> Experiment:
    draft = Draft()
    for key, value in {**SMALL, **(values or {})}.items():
        if key in axes:
            continue
        draft.put(key, value, "test")
    draft.put("sweep", axes, "grid.toml")
    return plan(draft)


def refusal(error: type[Exception], values: dict[str, Any] | None = None, **axes: Any) -> str:
    with pytest.raises(error) as caught:
        planned(values, **axes)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


distinct_rates = st.lists(st.integers(1, 200), min_size=1, max_size=3, unique=True)


@settings(max_examples=20, deadline=None)
@given(
    rate=distinct_rates,
    seqs=st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
    tpot=st.lists(st.integers(5, 50), min_size=1, max_size=2, unique=True),
    seeds=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    policies=st.lists(st.sampled_from(["fcfs+full", "sloweave", "srjf-static+full"]), min_size=1, unique=True),
)
def test_cells_are_the_product_of_the_axes_in_order(
    rate: list[int], seqs: list[int], tpot: list[int], seeds: list[int], policies: list[str]
) -> None:
    experiment = planned(rate=rate, tpot=tpot, policies=policies, seeds=seeds, engine={"max_num_seqs": seqs})
    got = [(*dict(c.point).values(), c.label, c.seed) for c in experiment.cells]
    assert got == [(r, t, q, p, s) for r in rate for t in tpot for q in seqs for p in policies for s in seeds]
    assert len({c.key for c in experiment.cells}) == len(got)
    assert all(
        (c.source.rate, c.limits.max_num_seqs, c.objectives.tpot_p99)
        == (dict(c.point)["rate"], dict(c.point)["engine.max_num_seqs"], dict(c.point)["tpot"] * 1_000_000)
        for c in experiment.cells
    )


def test_a_swept_parameter_equals_the_policy_string_that_has_it() -> None:
    swept = planned({"policies": ["prefillonly"]}, lam=[0, 200, 500])
    for cell, lam in zip(swept.cells, (0, 200, 500), strict=True):
        (written,) = planned({"policies": [f"srjf-calibrated:lam={lam}+full"]}).cells
        assert cell.key == written.key
        assert cell.label == "prefillonly"


def test_any_parameter_of_a_policy_is_an_axis() -> None:
    swept = planned({"policies": ["fcfs+fixed"]}, policy={"chunk": [16, 32]})
    assert [c.policy.chunking.params["chunk"] for c in swept.cells] == [16, 32]


def test_a_policy_without_the_swept_parameter_runs_once() -> None:
    experiment = planned({"policies": ["fcfs+full", "prefillonly"]}, lam=[0, 500], rate=[10, 20])
    got = [(c.label, dict(c.point)) for c in experiment.cells]
    assert len(experiment.cells) == len({c.key for c in experiment.cells}) == 2 * (1 + 2)
    assert [point for label, point in got if label == "fcfs+full"] == [
        {"lam": None, "rate": 10},
        {"lam": None, "rate": 20},
    ]


def test_tpot_keeps_the_other_objectives() -> None:
    experiment = planned({"slo": "ttft:400,tpot_p99:99"}, tpot=[10])
    assert str(experiment.cells[0].objectives) == "ttft:400,tpot_p99:10"


def test_without_objectives_a_workload_has_its_papers_ttft_and_a_file_none(tmp_path: Any) -> None:
    experiment = planned(workload=["chat", "long", "post-recommendation"])
    assert [str(c.objectives) for c in experiment.cells] == ["ttft:1000", "ttft:5000", ""]


def test_the_workload_axis_takes_the_place_of_the_workload() -> None:
    assert [c.source.workload for c in planned(workload=["long", "mixed"]).cells] == ["long", "mixed"]


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"rte": [1]}, "grid.toml: sweep.rte is no axis; did you mean rate?"),
        ({"engine": {"max_num_seq": [1]}}, "did you mean engine.max_num_seqs?"),
        ({"rate": []}, "sweep.rate is [], but it should be a list of at least one value"),
        ({"rate": 5}, "sweep.rate is 5, but it should be a list"),
        ({"rate": [5, 5]}, "sweep.rate lists 5 twice"),
        ({"rate": [5, 6, 5.0]}, "sweep.rate lists 5.0 twice"),
        ({"rate": [[5], [5]]}, "sweep.rate lists [5] twice"),
        ({"rate": [0]}, "sweep.rate is 0, but it should be greater than 0"),
        ({"rate": ["fast"]}, "sweep.rate is 'fast', but it should be a valid number"),
        ({"rate": [[1]]}, "sweep.rate is [1], but it should be a valid number"),
        ({"tpot": [0]}, "sweep.tpot lists 0"),
        ({"tpot": ["low"]}, "sweep.tpot lists 'low'"),
        ({"lam": [1]}, "sweep.lam: none of the policies has a parameter lam"),
        ({"policy": {"lamb": [1]}}, "none of the policies has a parameter lamb"),
        ({"name": ["a", "b"]}, "sweep.name is no axis"),
        ({"keep": ["records"]}, "sweep.keep is no axis"),
        ({"seeds": []}, "seeds is []"),
        ({"rate": [5], "trace": {"rate": [6]}}, "sweep.trace.rate and sweep.rate exclude each other"),
        ({"lam": [5], "policy": {"lam": [6]}}, "sweep.policy.lam and sweep.lam exclude each other"),
        ({"workload": ["chat"], "trace": {"file": ["x"]}}, "sweep.trace.file and sweep.workload exclude each other"),
    ],
)
def test_a_wrong_axis_is_refused(axes: dict[str, Any], reason: str) -> None:
    assert reason in refusal(ConfigError, **axes)


def test_an_experiment_of_too_many_runs_is_refused_before_they_are_planned() -> None:
    values = list(range(1, 2001))
    told = refusal(ConfigError, {"policies": ["fcfs+full"], "seeds": 1}, engine={"max_num_seqs": values}, tpot=values)
    assert "4,000,000 runs" in told
    assert "1 policies, 1 seeds" in told
    assert "engine.max_num_seqs, tpot" in told


def test_a_wrong_value_of_a_policy_parameter_is_refused() -> None:
    assert "lam" in refusal(PolicyError, {"policies": ["prefillonly"]}, lam=[-1])


def test_what_an_experiment_needs() -> None:
    assert "no policy" in refusal(ConfigError, {"policies": []})
    assert "'fcfs+full' is given twice" in refusal(PolicyError, {"policies": ["fcfs+full", "fcfs+full"]})
    assert "did you mean chat?" in refusal(TraceError, {"trace.workload": "chta"})
    assert refusal(ConfigError, {"slo": "tpt:3"}).startswith("test: slo 'tpt:3': unknown objective tpt")
    assert "grid.toml: sweep.slo: slo 'x'" in refusal(ConfigError, slo=["ttft:1", "x"])
    draft = Draft()
    draft.put("policies", ["fcfs+full"], "test")
    with pytest.raises(ConfigError, match="no trace: give one of --workload NAME and --trace FILE"):
        plan(draft)


def test_a_format_describes_files_only() -> None:
    assert "trace.format describes a file" in refusal(ConfigError, {"trace.format": "azure"})


def test_one_file_cannot_give_policies_twice() -> None:
    draft = Draft()
    draft.put("policies", ["a"], "x.toml")
    with pytest.raises(ConfigError, match=r"x\.toml: policies and sweep\.policies exclude each other"):
        draft.put("sweep", {"policies": ["b"]}, "x.toml")


def test_only_cell_refuses_more_than_one_run() -> None:
    assert only_cell(planned()).label == "fcfs+full"
    with pytest.raises(ConfigError, match="there are the policies fcfs\\+full, sloweave"):
        only_cell(planned({"policies": ["fcfs+full", "sloweave"]}))
    with pytest.raises(ConfigError, match=r"\[sweep\] has rate"):
        only_cell(planned(rate=[3]))
