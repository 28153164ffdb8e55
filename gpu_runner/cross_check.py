"""The simulator against the real vLLM scheduler, over policies, traces, memory and pipeline depths.

``python -m gpu_runner.cross_check`` runs the quick set, ``--full --out FILE`` all of it, for the report that is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from tqdm import tqdm

from costmodels.io import load_cost_model
from gpu_runner.identity import Agreement, agreement, batches_of
from gpu_runner.settings import KEY
from policies.spec import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.provenance import provenance
from sim.store import atomic_write
from traces.io import read_trace
from traces.schema import Trace
from traces.synthetic import generate

POLICIES = (
    "vllm-default",
    "sarathi:budget=512",
    "fcfs+fixed:chunk=256",
    "fcfs+full",
    "sloweave:tpot=25",
    "srjf-static+full",
    "srjf-calibrated+full",
    "srjf-calibrated+deadline-fill:tpot=25",
    "lpm+token-budget",
)
NULL_POLICY = "vllm-default"
"""The policy that decides what vLLM does by itself."""

SYNTHETIC = ("chat", "long", "mixed", "bursty", "post-recommendation", "credit-verification")
REAL = {
    "azure": "AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake_conversation.jsonl",
    "ragpulse": "ragpulse_trace.jsonl",
}
"""Files of the folder of public traces, by the kind of trace."""

COST_MODEL = "sloweave-paper"
SEQS = 64
LOAD = 1.2
"""Work per second that real traces are sped up to, so that many requests run at once."""


@dataclass(frozen=True)
class Case:
    """One run of the real scheduler to be compared."""

    policy: str
    trace: str
    requests: int
    depth: int = 1
    prefix_cache: bool = True
    scarce: bool = True
    """Blocks for little more than the largest request, so that running requests are preempted."""
    stock: bool = False
    """vLLM's own scheduler, without ours."""

    def __str__(self) -> str:
        return (
            f"{'stock vLLM as ' if self.stock else ''}{self.policy} on {self.trace}, depth {self.depth}, "
            f"{'' if self.prefix_cache else 'no '}prefix cache, {'scarce' if self.scarce else 'ample'} blocks"
        )


@dataclass(frozen=True)
class Outcome:
    """What a comparison found."""

    case: Case
    agreement: Agreement
    blocks: int
    preemptions: int
    cached_tokens: int
    engine_s: float
    """Wall time of the real scheduler."""
    simulator_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "policy": self.case.policy,
            "stock": self.case.stock,
            "trace": self.case.trace,
            "requests": self.case.requests,
            "depth": self.case.depth,
            "prefix_cache": self.case.prefix_cache,
            "blocks": self.blocks,
            "steps": self.agreement.steps,
            "identical_steps": self.agreement.same,
            "preemptions": self.preemptions,
            "cached_tokens": self.cached_tokens,
            "engine_s": round(self.engine_s, 3),
            "simulator_s": round(self.simulator_s, 3),
            "first_difference": None if self.agreement.first is None else str(self.agreement.first),
        }


def load(kind: str, requests: int, folder: Path | None) -> Trace:
    """Return the first requests of a kind of trace."""
    if kind in REAL:
        assert folder is not None
        trace = read_trace(folder / REAL[kind]).limit(requests)
        return trace.scale_rate(LOAD / _load(trace))
    return generate(kind, 0, n=requests)


def _load(trace: Trace) -> float:
    """Return about how much of an engine's time a trace takes: its prompts alone, its decodes in batches of eight."""
    cost = load_cost_model(COST_MODEL)
    prompts = sum(cost.step_ns(0, 0, 0, 1, p, p * (p + 1) // 2) for p in trace.prompt_tokens.tolist())
    decode = cost.step_ns(8, 8 * int(trace.prompt_tokens.mean()), int(trace.prompt_tokens.max()), 0, 0, 0) / 8
    return float((prompts + decode * trace.output_tokens.sum()) / (trace.arrival_ns[-1] - trace.arrival_ns[0]))


def memory_of(trace: Trace, case: Case) -> Memory:
    """Return the KV memory of a case."""
    longest = int((trace.prompt_tokens + trace.output_tokens - 1).max())
    total = int((trace.prompt_tokens + trace.output_tokens).sum())
    blocks = -(-longest // 16) + 1
    return Memory(
        blocks=int(blocks * 1.15) + 2 if case.scarce else blocks + total // 16, prefix_cache=case.prefix_cache
    )


def run_case(case: Case, folder: Path | None = None) -> Outcome:
    """Run a case through the real scheduler and through the simulator, and compare them step by step.

    Needs vLLM.
    """
    from gpu_runner.oracle import Oracle, OracleOptions

    trace = load(case.trace, case.requests, folder)
    cost, policy, memory = load_cost_model(COST_MODEL), parse_policy(case.policy), memory_of(trace, case)
    length = int((trace.prompt_tokens + trace.output_tokens).max())
    seats = policy.chunking.seat_limit(SEQS) or SEQS
    settings = {KEY: {"policy": case.policy, "cost_model": COST_MODEL, "record": True}}
    assert memory.blocks is not None
    options = OracleOptions(
        blocks=memory.blocks,
        prefix_cache=case.prefix_cache,
        max_num_batched_tokens=max(policy.chunking.step_limit(seats, length), seats),
        max_num_seqs=SEQS,
        max_model_len=length,
        pipeline_depth=case.depth,
        additional=None if case.stock else settings,
    )
    oracle = Oracle(trace, cost, options)
    began = time.perf_counter()
    batches = oracle.run()
    engine_s = time.perf_counter() - began
    began = time.perf_counter()
    run = simulate(
        trace,
        policy,
        cost,
        objectives=Objectives(),
        limits=Limits(max_num_seqs=SEQS, pipeline_depth=case.depth),
        cache=memory.build(trace),
    )
    simulated = batches_of(run)
    simulator_s = time.perf_counter() - began
    return Outcome(
        case,
        agreement(batches, simulated),
        memory.blocks,
        len(run.preemptions["step"]),
        int(run.requests["cached_tokens"].clip(0).sum()),
        engine_s,
        simulator_s,
    )


def quick_cases(real: bool) -> Iterator[Case]:
    """Yield every policy once, each kind of trace at least once, memory and depths in turn."""
    kinds = (*(REAL if real else ()), *SYNTHETIC)
    for i, policy in enumerate(POLICIES):
        yield Case(policy, kinds[i % len(kinds)], 100, 1 + i % 2, prefix_cache=i % 4 != 3, scarce=i % 3 != 2)
    for depth in (1, 2):
        yield Case(NULL_POLICY, "mixed", 100, depth, stock=True)


MEMORIES = ((True, True), (False, True), (True, False))
"""Prefix cache, and whether blocks are scarce."""


def full_cases() -> Iterator[Case]:
    """Yield every policy on every trace at both depths, its memory in turn: each policy meets each kind of it."""
    for i, kind in enumerate((*REAL, *SYNTHETIC)):
        for depth in (1, 2):
            for k, policy in enumerate((*POLICIES, NULL_POLICY)):
                cache, scarce = MEMORIES[(i + depth + k) % len(MEMORIES)]
                yield Case(policy, kind, 500, depth, cache, scarce, stock=k == len(POLICIES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparisons and write what they found; 1 where a step differed."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.cross_check", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every policy on every trace")
    parser.add_argument("--traces", type=Path, default=None, help="folder of the public traces")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file; what is in it already is not run again")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    folder = given.traces
    if folder is not None and not folder.is_dir():
        parser.error(f"there is no folder {folder}")
    if given.full and folder is None:
        parser.error("--full needs the public traces: give --traces DIR")
    cases = list(full_cases()) if given.full else list(quick_cases(folder is not None))
    known = _read(given.out)
    done = {str(case): known[str(case)] for case in cases if str(case) in known}
    left = [case for case in cases if str(case) not in done]
    # Neighbours share a trace, so that each process makes only some of them.
    run = Parallel(n_jobs=given.jobs, return_as="generator")
    for outcome in tqdm(run(delayed(run_case)(c, folder) for c in left), total=len(left), unit="case"):
        done[str(outcome.case)] = outcome.to_dict()
        if given.out is not None:
            _write(given.out, done)
        if outcome.agreement.first is not None:
            print(f"{outcome.case}\n{outcome.agreement.first}", file=sys.stderr)
    found = [done[str(case)] for case in cases]
    if given.out is not None:
        _write(given.out, {str(case): done[str(case)] for case in cases})
    steps, same = (sum(row[name] for row in found) for name in ("steps", "identical_steps"))
    lost = sum(row["preemptions"] for row in found)
    print(f"{len(found)} runs, {steps:,} steps, {same:,} identical, {lost:,} preemptions")
    return int(same != steps)


def _read(out: Path | None) -> dict[str, Any]:
    if out is None or not out.exists():
        return {}
    runs: dict[str, Any] = json.loads(out.read_text())["runs"]
    return runs


def _write(out: Path, done: dict[str, Any]) -> None:
    from vllm import __version__ as vllm_version

    found = {"provenance": {**provenance(), "vllm": vllm_version, "cost_model": COST_MODEL}, "runs": done}
    atomic_write(out, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
