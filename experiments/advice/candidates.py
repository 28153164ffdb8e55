"""Which policies are worth trying on a trace, and how much each asks of who is to run it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.base import CostModel, CostModelError
from costmodels.calibrated import RangeWarning
from costmodels.margin import with_margin
from experiments.advice.trace import Look
from experiments.tuning import speed_of
from policies.spec import PolicySpec

DEFAULT = "vllm-default"

DEFAULT_BUDGET = 2048

BUDGETS = (256, 512, 1024, 4096, 8192)

CHUNKS = (128, 256, 512, 1024, 2048)

MOST_CHUNKS = 64
"""Fixed chunks that would split the mean prompt into more than this are not tried."""

STEP = 64
"""Sizes between those that were tried are multiples of it."""

FRACTIONS = (1 / 100, 1 / 30, 1 / 10, 1 / 3, 1.0)
"""λ over the speed of prefilling; a tenth of it is where to start."""

FEWER = (1 / 30, 1 / 10, 1 / 3)
"""The same for requests that decode."""

COVERAGE = "c99"

NONE, STOCK, CHUNK, FILL, SLOTS, ORDER, YOURS = "default", "budget", "chunk", "fill", "slots", "order", "yours"

EFFORT = {NONE: 0, STOCK: 1, CHUNK: 2, FILL: 3, SLOTS: 5, ORDER: 10, YOURS: 20}
"""What a family asks: nothing; options of vLLM; a scheduler class; a cost model; several prefills; another order."""


@dataclass(frozen=True)
class Candidate:
    """A policy that may be recommended."""

    policy: str
    family: str
    effort: int
    """What it takes to run it; of two that do as well the one of less effort is recommended."""
    probe: bool = False
    """Whether it stands for its family where it is found out how many replicas to compare policies on."""

    bare: bool = False
    """Whether it trusts a fitted cost model to the last: tried, to see what a margin costs, but not recommended."""

    @property
    def chunking(self) -> str:
        """The chunking in full, to be put beside another ordering."""
        return str(PolicySpec.parse(self.policy)).split("+", 1)[1]


def first_round(look: Look, believed: CostModel, seats: int, extra: Sequence[str]) -> list[Candidate]:
    """Return what is tried first, ``vllm-default`` before all others.

    Args:
        look: the trace.
        believed: the cost model that policies consult.
        seats: most requests that run at once.
        extra: policies of the user's own choice.
    """
    found = [Candidate(DEFAULT, NONE, EFFORT[NONE], probe=True)]
    found += [budget(b, seats, probe=b == 512) for b in BUDGETS]
    if look.prefill_only:
        found.append(Candidate("fcfs+full", CHUNK, EFFORT[CHUNK], probe=True))
        found.append(Candidate("srjf-static+full", ORDER, EFFORT[ORDER]))
        speed = _speed(believed)
        found += [_aged(speed * f, "full", probe=f == 1 / 10) for f in FRACTIONS]
    else:
        threshold = f"fcfs+token-budget:budget={DEFAULT_BUDGET},threshold=512"
        found.append(Candidate(threshold, STOCK, EFFORT[STOCK]))
        usable = [c for c in CHUNKS if look.prompt_mean <= MOST_CHUNKS * c]
        found += [_fixed(c, probe=c == 512) for c in usable]
        if look.has_tpot:
            found += _deadlines(believed)
    known = {str(PolicySpec.parse(c.policy)) for c in found}
    for text in extra:
        if str(PolicySpec.parse(text)) not in known:
            found.append(Candidate(text, YOURS, EFFORT[YOURS], probe=True))
    return found


def second_round(look: Look, believed: CostModel, seats: int, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return what is tried next: sizes around the best ones, and the best chunkings in other orders.

    Args:
        look: the trace.
        believed: the cost model that policies consult.
        seats: most requests that run at once.
        ranked: the first round, the best first.
    """
    found: list[Candidate] = []
    tried = [PolicySpec.parse(c.policy) for c in ranked]
    budgets = [s.chunking.params["budget"] for s in tried if s.chunking.name == "token-budget" and not _limited(s)]
    chunks = [s.chunking.params["chunk"] for s in tried if s.chunking.name == "fixed"]
    found += [budget(b, seats) for b in _between(budgets)]
    found += [_fixed(c) for c in _between(chunks)]
    ours = [c for c in ranked if c.family not in (ORDER, YOURS) and not c.bare]
    speed = _speed(believed)
    if look.prefill_only:
        best = next((c for c in ranked if c.family == ORDER), None)
        sizes = [c for c in ours if c.family in (NONE, STOCK)][:2]
        if best is not None:
            ordering = best.policy.split("+", 1)[0]
            found += [Candidate(f"{ordering}+{c.chunking}", ORDER, EFFORT[ORDER] + c.effort) for c in sizes]
    else:
        for c in ours[:2]:
            fractions = FEWER if look.sharing else FEWER[1:2]
            found += [_aged(speed * f, c.chunking, c.effort) for f in fractions]
            if look.several_ttft:
                found.append(Candidate(f"edf+{c.chunking}", ORDER, EFFORT[ORDER] + c.effort))
    known = {str(s) for s in tried}
    new = {str(PolicySpec.parse(c.policy)): c for c in reversed(found)}
    return [c for text, c in reversed(new.items()) if text not in known]


def budget(tokens: int, seats: int, *, probe: bool = False) -> Candidate:
    """Return a shared budget; where it is below the seats, there are only as many seats, as vLLM demands."""
    if tokens == DEFAULT_BUDGET and tokens >= seats:
        return Candidate(DEFAULT, NONE, EFFORT[NONE], probe)
    fewer = f",seqs={tokens}" if tokens < seats else ""
    return Candidate(f"fcfs+token-budget:budget={tokens}{fewer}", STOCK, EFFORT[STOCK], probe)


def is_fitted(believed: CostModel) -> bool:
    """Return whether a cost model knows how far it is from the steps that it was fitted to."""
    try:
        with_margin(believed, COVERAGE)
    except CostModelError:
        return False
    return True


def _deadlines(believed: CostModel) -> list[Candidate]:
    # A simulation in which the cost model is right cannot tell what a margin is for, so the careful one counts as less.
    fitted = is_fitted(believed)
    careful, other = (COVERAGE, "0") if fitted else ("0", "5%")
    return [
        Candidate(_margin("sloweave", careful), FILL, EFFORT[FILL], probe=True),
        Candidate(_margin("sloweave", other), FILL, EFFORT[FILL] + 1, bare=fitted),
        Candidate(_margin("fcfs+deadline-slots", careful), SLOTS, EFFORT[SLOTS], probe=True),
        Candidate(_margin("fcfs+deadline-slots", other), SLOTS, EFFORT[SLOTS] + 1, bare=fitted),
    ]


def _margin(policy: str, margin: str) -> str:
    return policy if margin == "0" else f"{policy}:margin={margin}"


def _fixed(chunk: int, *, probe: bool = False) -> Candidate:
    return Candidate(f"fcfs+fixed:chunk={chunk}", CHUNK, EFFORT[CHUNK], probe)


def _aged(lam: float, chunking: str, effort: int = EFFORT[CHUNK], *, probe: bool = False) -> Candidate:
    policy = f"srjf-calibrated:lam={float(f'{lam:.2g}'):g}+{chunking}"
    return Candidate(policy, ORDER, EFFORT[ORDER] + effort, probe)


def _speed(believed: CostModel) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RangeWarning)
        return speed_of(believed)


def _limited(spec: PolicySpec) -> bool:
    return spec.chunking.params.get("threshold") is not None


def _between(sizes: Sequence[int]) -> list[int]:
    """Return sizes between the first and its neighbours, and half or twice it where it has none.

    Args:
        sizes: the best first.
    """
    if not sizes:
        return []
    best, ordered = sizes[0], sorted(sizes)
    at = ordered.index(best)
    lower = math.sqrt(best * ordered[at - 1]) if at else best / 2
    upper = math.sqrt(best * ordered[at + 1]) if at + 1 < len(ordered) else best * 2
    rounded = [max(STEP, STEP * round(size / STEP)) for size in (lower, upper)]
    return [size for size in dict.fromkeys(rounded) if size not in sizes]
