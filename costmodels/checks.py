"""Certifies cost models, one's own or anybody's: what policies and engines rely on."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from costmodels.base import CostModel
from costmodels.calibrated import FEATURES, RangeWarning
from costmodels.io import FORMAT_VERSION, KINDS, cost_model_from_dict
from costmodels.nnls import prefill_context

Features = tuple[int, int, int, int, int, int]

PAIRS = 300
"""Random pairs of steps that are compared."""

CORNERS: tuple[Features, ...] = (
    (1, 1, 1, 0, 0, 0),
    (0, 0, 0, 1, 1, 1),
    (1, 1_000_000, 1_000_000, 0, 0, 0),
    (4096, 4096 * 131_072, 131_072, 0, 0, 0),
    (0, 0, 0, 1, 1_000_000, 500_000_500_000),
    (0, 0, 0, 1, 1, 1_000_000),
    (1024, 1024, 1, 1024, 1024, 1024),
    (4096, 4096 * 131_072, 131_072, 4096, 1_000_000, 10**12),
)

MOST_NS = 1 << 62


def check_cost_model(model: CostModel) -> list[str]:
    """Say what is wrong with a cost model, a sentence each; an empty list certifies it.

    Checked on corners and on a fixed random sample: steps take a whole, positive number of nanoseconds that fits the
    64-bit clock and never falls when a feature grows, prefill tokens together with the pairs that they make;
    ``max_chunk`` is the most that fits, neither more nor less (SLOWeave §3.3, Proposition 1); ``decode_run_ns`` equals
    going step by step; and, where ``costmodels.io`` reads the model's kind, JSON gives an equal model back.
    """
    checks: tuple[Callable[[CostModel], str | None], ...] = (_durations, _monotone, _chunks, _runs, _json)
    problems = []
    for check in checks:
        try:
            with warnings.catch_warnings():
                # Corners lie outside what anybody measures, and a model must be sound there too.
                warnings.simplefilter("ignore", RangeWarning)
                problem = check(model)
        except Exception as e:
            problem = f"{check.__name__.strip('_')} could not be checked: {type(e).__name__}: {e}"
        if problem is not None:
            problems.append(f"cost model {model.name}: {problem}")
    return problems


@cache
def _steps() -> tuple[Features, ...]:
    """Return random steps that an engine can meet."""
    rng = np.random.default_rng(20_260_907)
    steps = []
    for _ in range(PAIRS):
        n, n_prefill = int(rng.integers(0, 513)), int(rng.integers(0, 5))
        n = n or int(not n_prefill)
        longest = int(rng.integers(1, 20_000)) if n else 0
        total = int(rng.integers(longest, n * longest + 1)) if n else 0
        tokens = int(rng.integers(n_prefill, 9_000)) if n_prefill else 0
        pairs = tokens * int(rng.integers(0, 9_000)) + tokens * (tokens + 1) // 2
        steps.append((n, total, longest, n_prefill, tokens, pairs))
    return tuple(steps)


@cache
def _larger() -> tuple[tuple[Features, tuple[tuple[int, Features], ...]], ...]:
    """Return corners and random steps, each with larger ones and the number of the feature that has grown."""
    rng = np.random.default_rng(7)
    found = []
    for step in (*CORNERS, *_steps()):
        larger = []
        for i in range(len(FEATURES)):
            # A step without decodes has no decode features, and likewise for prefills.
            if not step[0 if i < 3 else 3]:
                continue
            more = list(step)
            add = int(rng.choice((1, 2, 16, 1000)))
            more[i] += add
            if i == 4:  # tokens of a prefill come with the pairs that they make
                more[5] += add * (prefill_context(step[4], step[5]) + step[4]) + add * (add + 1) // 2
            n, total, longest, n_prefill, tokens, pairs = more
            larger.append((i, (n, total, longest, n_prefill, tokens, pairs)))
        found.append((step, tuple(larger)))
    return tuple(found)


def _durations(model: CostModel) -> str | None:
    for step in (*CORNERS, *_steps()):
        t: Any = model.step_ns(*step)
        if type(t) is not int or not 0 < t < MOST_NS:
            return f"a step of {_named(step)} takes {t!r} ns; it must be an int, at least 1 and less than 2**62"
        again = model.step_ns(*step)
        if again != t:
            return f"a step of {_named(step)} takes {t} ns, and {again} ns when asked again"
    return None


def _monotone(model: CostModel) -> str | None:
    for step, larger in _larger():
        t = model.step_ns(*step)
        for i, more in larger:
            u = model.step_ns(*more)
            if u < t:
                return f"a step of {_named(step)} takes {t} ns, but only {u} ns with {FEATURES[i]} = {more[i]}"
        n, total, longest, n_prefill, tokens, pairs = step
        without = model.step_ns(n, total, longest, 0, 0, 0) if n else 0
        alone = model.step_ns(0, 0, 0, n_prefill, tokens, pairs) if n_prefill else 0
        if max(without, alone) > t:
            return f"a step of {_named(step)} takes {t} ns, but {max(without, alone)} ns with less to do"
    return None


@cache
def _prefills() -> tuple[tuple[int, int, int, int, int, int, float], ...]:
    """Return decodes, a prefill's context and what is left of it, a chunk of that, and a share."""
    rng = np.random.default_rng(11)
    found = []
    for n, total, longest, _, _, _ in _steps():
        context, limit = int(rng.choice((0, 0, 16, 3000))), int(rng.choice((1, 2, 300, 4096, 50_000)))
        found.append((n, total, longest, context, limit, int(rng.integers(1, limit + 1)), float(rng.random())))
    return tuple(found)


def _chunks(model: CostModel) -> str | None:
    for n, total, longest, context, limit, chunk, share in _prefills():

        @cache
        def takes(c: int, n: int = n, total: int = total, longest: int = longest, context: int = context) -> int:
            return model.step_ns(n, total, longest, int(c > 0), c, c * context + c * (c + 1) // 2)

        exact = takes(chunk)
        any_time = 1 + int(share * (2 * exact - 1))
        budgets = (exact, exact - 1, exact + 1, takes(limit), takes(limit + 1), any_time, 0, -1, MOST_NS)
        for budget in dict.fromkeys(budgets):
            c: Any = model.max_chunk(n, total, longest, context, limit, budget)
            problem = _chunk_problem(c, limit, budget, takes)
            if problem is not None:
                return f"max_chunk({n}, {total}, {longest}, {context}, {limit}, {budget}) is {c!r}{problem}"
    return None


def _chunk_problem(c: Any, limit: int, budget: int, takes: Callable[[int], int]) -> str | None:
    if type(c) is not int or not 0 <= c <= limit:
        return f"; it must be an int from 0 to {limit}"
    if c and takes(c) > budget:
        return f", a step of {takes(c)} ns"
    if c < limit and takes(c + 1) <= budget:
        return f", but {c + 1} take {takes(c + 1)} ns and fit as well"
    return None


def _runs(model: CostModel) -> str | None:
    for n, total, longest, steps in (
        (1, 1, 1, 50),
        (7, 900, 400, 20),
        (300, 90_000, 4000, 9),
        (5, 50, 10, 0),
        (3, 9, 4, 1),
    ):
        run = model.decode_run_ns(n, total, longest, steps)
        if not isinstance(run, np.ndarray) or run.shape != (steps,) or run.dtype != np.int64:
            return f"decode_run_ns of {steps} steps returned {run!r}; it must be an int64 array of that length"
        single = [model.step_ns(n, total + j * n, longest + j, 0, 0, 0) for j in range(steps)]
        if run.tolist() != single:
            return f"decode_run_ns({n}, {total}, {longest}, {steps}) is {run.tolist()}, step by step it is {single}"
    return None


def _json(model: CostModel) -> str | None:
    data = model.to_dict()
    text = json.dumps({"version": FORMAT_VERSION, **data}, allow_nan=False)
    if data.get("kind") not in KINDS:
        return None
    back = cost_model_from_dict(json.loads(text))
    return None if back == model else f"{model!r} comes back from JSON as {back!r}"


def _named(step: Features) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(FEATURES, step, strict=True))
