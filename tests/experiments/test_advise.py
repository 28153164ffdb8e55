"""Advice on traces whose right answer is known, and held against all candidates by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.io import save_cost_model
from costmodels.linear import LinearCost
from experiments.advice.choice import NEGLIGIBLE
from policies.units import MS, NS
from sim.stats import paired
from tests.experiments.advising import MIXED, QUICK
from tests.experiments.conftest import Cli
from traces.io import write_trace
from traces.schema import Segments, Trace


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.advice.shown._picture", lambda advice, folder: [])
    monkeypatch.setattr("experiments.figure.write_figure", lambda comparison, folder: [])


def requests_file(n: int, prompt: int, outputs: int, segments: Segments | None = None) -> str:
    """Write equal requests that arrive every second; returns the file's name."""
    columns = {"prompt_tokens": prompt, "output_tokens": outputs}
    filled = {name: np.full(n, value, dtype=np.int64) for name, value in columns.items()}
    write_trace(Trace(NS * np.arange(n, dtype=np.int64), **filled, segments=segments), "equal.parquet")
    return "equal.parquet"


def cost_file(**coefficients: int) -> str:
    save_cost_model(LinearCost("artificial", **coefficients), Path("artificial.json"))
    return "artificial.json"


def waits(rate: float, replicas: int, n: int, seeds: range) -> list[float]:
    """Return, per seed, the share that waits at most one service of a second: Lindley, each replica its turn."""
    shares = []
    for seed in seeds:
        arrival = np.cumsum(np.random.default_rng([seed, 5]).exponential(1 / rate, n))
        good = 0
        for own in (arrival[k::replicas] for k in range(replicas)):
            walk = np.cumsum(1 - np.diff(own))
            wait = np.concatenate([[0.0], walk - np.minimum.accumulate(np.minimum(walk, 0.0))])
            good += int((wait <= 1.0).sum())
        shares.append(good / n)
    return shares


def test_replicas_are_those_that_queueing_theory_needs(cli: Cli) -> None:
    """One request at a time, a second each, in turn to the replicas: E_r/D/1, started empty as the runs are."""
    n, rate = 200, 2.1
    truth = next(r for r in range(1, 20) if np.mean(waits(rate, r, n, range(150))) >= 0.9)
    assert truth > 1
    cost = cost_file(step=0, decode=0, per_decode=1, prefill=0, per_token=NS // 1000)
    trace = requests_file(n, 1000, 1)
    slo = ("--slo", "ttft:2000", "--router", "round-robin", "--rate", str(rate), "--seeds", "8")
    result = cli("advise", "--trace", trace, "--cost-model", cost, *slo, *QUICK, "--out", "o")
    assert result.code == 0, result.err
    found = result.json["replicas"]
    assert (found["surely_do_not"] or 0) < truth <= found["surely_suffice"]
    assert found["surely_suffice"] <= truth + 1
    # Two prompts in a step of 2,048 tokens end together, so the first ends late: the default needs no fewer.
    default = result.json["replicas_of_default"]
    assert default["surely_suffice"] >= found["surely_suffice"]
    assert (default["surely_do_not"] or 0) >= (found["surely_do_not"] or 0)
    theory = np.mean(waits(rate, found["compared_on"], n, range(150)))
    best = result.json["finalists"][0]["slo_attainment"]
    assert best["ci95"][0] - 0.01 <= theory <= best["ci95"][1] + 0.01


def test_the_chunk_that_just_fits_is_found(cli: Cli) -> None:
    """A step of 16 decodes and 256 tokens ends exactly on the TPOT objective; smaller chunks fall behind the arrivals.

    A step costs 10 ms and a token 0.1 ms, whatever decodes; so 256 tokens take 35.6 ms, and one more is too late.
    """
    cost = cost_file(step=10 * MS, decode=0, per_decode=1, prefill=0, per_token=MS // 10)
    trace = requests_file(120, 1024, 20)
    slo = ("--slo", "ttft:600,tpot_p99:35.60002", "--rate", "5.5", "--seeds", "4", "--replicas", "1")
    result = cli("advise", "--trace", trace, "--cost-model", cost, *slo, *QUICK, "--attainment", "50", "--out", "o")
    assert result.code in (0, 1), result.err
    of_family = {t["policy"]: np.mean(t["attained"]) for t in result.json["tuned"] if t["family"] == "chunk"}
    best = max(of_family, key=lambda policy: of_family[policy])
    assert best == "fcfs+fixed:chunk=256"
    assert of_family[best] > 0.1 + max(value for policy, value in of_family.items() if policy != best)


def test_where_all_tie_the_simplest_is_recommended(cli: Cli) -> None:
    slo = ("--slo", "ttft:60000,tpot_p99:5000", "--seeds", "6", "--limit", "60", "--rate", "1")
    result = cli("advise", "--workload", "mixed", *slo, *QUICK, "--out", "o")
    assert result.code == 0, result.err
    assert result.json["policy"] == "vllm-default"
    assert len(result.json["tied"]) == len(result.json["finalists"]) > 3
    assert "tied" in result.json["answer"][0]
    assert result.json["replicas"] == {"compared_on": 1, "surely_suffice": 1, "surely_do_not": None}
    assert all(f["behind"]["mean"] == 0 for f in result.json["finalists"])


def test_what_nothing_can_meet_is_said_plainly(cli: Cli) -> None:
    cost = cost_file(step=MS, decode=0, per_decode=1, prefill=0, per_token=MS)
    trace = requests_file(40, 500, 3)
    result = cli(
        "advise",
        "--trace",
        trace,
        "--cost-model",
        cost,
        "--slo",
        "ttft:300",
        "--seeds",
        "4",
        *QUICK,
        "--attainment",
        "50",
    )
    assert result.code == 1
    assert not result.json["reached"]
    assert result.json["look"]["hopeless"] == 1
    assert "Nothing that was tried reaches 50 %" in result.json["answer"][0]
    assert "100 % of the requests miss an objective even alone" in result.json["answer"][0]


def per_seed(document: Any, policy: str, metric: str) -> list[float]:
    values: list[float] = document["policies"][policy][metric]["per_seed"]
    return values


def test_no_candidate_is_better_on_the_fresh_seeds_and_compare_says_the_same(cli: Cli) -> None:
    """Brute force: all that was tuned, run on the seeds that the advice was given on, by another command."""
    result = cli("advise", *MIXED, "--rate", "110", "--replicas", "1", "--attainment", "80", "--out", "o")
    assert result.code in (0, 1), result.err
    advice = result.json
    policies = [argument for t in advice["tuned"] for argument in ("-p", t["policy"])]
    same = ("--rate", "110", "--max-num-seqs", "256", "--set", "keep=summary")
    compared = cli("compare", *MIXED, *same, *policies, "--out", "all")
    assert compared.code == 0, compared.err
    for finalist in advice["finalists"]:
        for metric in ("slo_attainment", "goodput", "ttft_p99_ms", "tpot_p99_ms"):
            assert finalist[metric]["per_seed"] == per_seed(compared.json, finalist["policy"], metric)
    own = per_seed(compared.json, advice["policy"], "slo_attainment")
    every = [per_seed(compared.json, t["policy"], "slo_attainment") for t in advice["tuned"]]
    best = max(every, key=np.mean)
    assert np.mean(own) > np.mean(min(every, key=np.mean)) + 0.2
    assert not paired(best, own).significant or np.mean(best) - np.mean(own) < NEGLIGIBLE


def test_prompts_that_share_a_first_block_do_not_all_go_to_one_replica(cli: Cli) -> None:
    """What keeps shared beginnings together keeps everything together here, and is not what is recommended."""
    n, unit = 80, NS // 1000
    ids = np.stack([np.zeros(n), 1 + np.arange(n)], 1).astype(np.int64).ravel()
    tokens = np.tile(np.array([160, 840], dtype=np.int64), n)
    shared = Segments(2 * np.arange(n + 1, dtype=np.int64), ids, tokens)
    trace = requests_file(n, 1000, 1, shared)
    cost = cost_file(step=0, decode=0, per_decode=1, prefill=0, per_token=unit)
    more = ("--slo", "ttft:3000", "--rate", "1.6", "--seeds", "6", "--kv-blocks", "4000")
    result = cli("advise", "--trace", trace, "--cost-model", cost, *more, *QUICK, "--out", "o")
    assert result.code == 0, result.err
    assert result.json["look"]["shared"] > 0.3
    assert result.json["router"] == "least-loaded"
    assert result.json["routers"]["prefix-affinity"] < 0.5 < 0.9 <= result.json["routers"]["least-loaded"]
    assert any("the router matters" in w for w in result.json["warnings"])
