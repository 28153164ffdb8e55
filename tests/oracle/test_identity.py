"""The simulator makes the real scheduler's batches, step by step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_runner.cross_check import Case, quick_cases, run_case
from tests.oracle.random_cases import RELATED, run_random

PUBLIC = Path(os.environ.get("PREFILLSIM_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
TRACES = PUBLIC if PUBLIC.is_dir() else None


@pytest.mark.parametrize("case", list(quick_cases(TRACES is not None)), ids=str)
def test_every_policy_makes_vllm_s_batches(case: Case) -> None:
    outcome = run_case(case, TRACES)
    assert outcome.agreement.identical, str(outcome.agreement.first)
    assert outcome.agreement.steps > 50


@pytest.mark.parametrize("seed", range(60))
def test_random_requests_in_little_memory(seed: int) -> None:
    """Any policy, any objectives, shared prefixes, blocks for hardly more than one request, both depths."""
    found = run_random(seed)
    assert found.identical, str(found.first)


@pytest.mark.parametrize("seed", range(60))
def test_orderings_and_chunkings_of_neighbouring_systems(seed: int) -> None:
    found = run_random(seed, RELATED)
    assert found.identical, str(found.first)
