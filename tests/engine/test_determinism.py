"""Equal inputs, equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from policies import parse_policy
from sim.engine import simulate
from sim.objectives import Objectives
from tests.engine.compare import digest
from tests.engine.costs import PAPER, GrowingCost
from traces.synthetic import generate
from dataclasses import replace

goals = Objectives.parse("ttft:1000,tpot_p99:25")
for workload in ("mixed", "bursty"):
    trace = generate(workload, seed=7, n=60)
    trace = replace(trace, tenant=np.array(["interactive", "batch", "other"] * 20, dtype=object))
    for text in (
        "sloweave:margins=interactive:2|batch:0.5",
        "vllm-default",
        "prefillonly",
        "edf+deadline-fill+decode-saturation:fraction=0.2",
    ):
        for cost in (PAPER, GrowingCost(base=900_000, batch=90, context=4000, tokens=5500, pairs=400)):
            print(trace.digest(), digest(simulate(trace, parse_policy(text), cost, objectives=goals)))
"""


def test_tables_are_byte_identical_whatever_the_hash_seed() -> None:
    """Case 13 (inference-sim#965, LLMServingSim PR 43): PYTHONHASHSEED 0, 1 and 2, in processes of their own."""
    root = Path(__file__).resolve().parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2")
    ]
    outputs = [p.communicate()[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0, 0]
    assert outputs[0] == outputs[1] == outputs[2]
    digests = [line.split()[1] for line in outputs[0].splitlines()]
    assert len(set(digests)) == len(digests) == 16
