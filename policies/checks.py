"""Certifies policies, one's own or anybody's: what hosts rely on and cannot check in the middle of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

from costmodels.base import CostModel
from costmodels.linear import LinearCost
from costmodels.margin import WithMargin
from policies.answers import answers, decision_is_fit, grant_is_fit, picks
from policies.base import Admission, Chunking, Decision, Observer, Ordering, Part, Policy
from policies.registry import class_problem, find, parts
from policies.rehearsal import Rehearsal, sample_requests, sample_steps
from policies.spec import PartSpec, PolicySpec, make_part
from policies.views import BatchView, Grant, LoadView, RequestView
from policies.witness import Raised, Witness, another_day, another_hash_seed

DEFAULT_PREDICTOR = LinearCost(
    name="check", residual_quantiles={"0.5": 0, "0.9": 200_000, "0.95": 300_000, "0.99": 500_000, "0.999": 900_000}
)

SLEEP_S = 0.002
"""Enough for a clock to move; the coarse ones are seen when they are called."""


def check_policy(policy: Policy | Part | type[Part], *, predictor: CostModel | None = None) -> list[str]:
    """Say what is wrong with a policy, or with a part of one, a sentence each; an empty list certifies it.

    Checked are: name, version, source and description; that parameters survive JSON and the policy string; that every
    answer is one that an engine can carry out, equal for equal views, and independent of clocks, chance, hash seeds
    and what was asked before; that a key does not follow the prefix cache undeclared; that there is progress; and that
    ``reset`` forgets everything. What passes is not proven right: the views are samples.

    Args:
        policy: a policy, a part, or the class of a part, which is then checked with its default parameters.
        predictor: the cost model that the policy is given to believe; by default SLOWeave's, with quantiles.
    """
    model = DEFAULT_PREDICTOR if predictor is None else predictor
    if not isinstance(policy, Policy):
        return _part_problems(policy, model)
    problems = [p for part in policy.parts for p in _part_problems(part, model)]
    if problems:
        return problems
    return [f"policy {policy.label}: {p}" for p in _rehearsal_problems(lambda: _copy(policy), model)]


def _copy(policy: Policy) -> Policy:
    made = {part.kind: type(part)(**part.params()) for part in policy.parts}
    return _compose(made)


def _compose(made: dict[str, Part]) -> Policy:
    return Policy(
        cast(Ordering, made.get("ordering") or find("ordering", "fcfs")()),
        cast(Chunking, made.get("chunking") or find("chunking", "full")()),
        cast(Admission | None, made.get("admission")),
    )


def _part_problems(given: Part | type[Part], model: CostModel) -> list[str]:
    part = given if isinstance(given, type) else type(given)
    problem = class_problem(part)
    if problem is not None:
        return [problem]
    title = f"{part.kind} {part.name}"
    if parts(part.kind).get(part.name) is not part:
        return [f"{title} is not registered; put @register on the class {part.__name__}"]
    problems = _description_problems(part)
    try:
        made = part() if isinstance(given, type) else given
        params = made.params()
        make_part(part.kind, part.name, params)
    except Exception as e:
        problems.append(f"cannot be made of its own parameters: {_line(e)}")
    else:
        problems += _round_trip_problems(made)
        try:
            problems = problems or _behaviour_problems(lambda: part(**params), model)
        except Exception as e:
            problems.append(f"the checks stopped: {_line(e)}")
    return [f"{title}: {p}" for p in problems]


def _line(e: Exception) -> str:
    said = str(e).strip() or "no message"
    return said.splitlines()[0] if isinstance(e, ValueError) else f"{type(e).__name__}: {said.splitlines()[0]}"


def _description_problems(part: type[Part]) -> list[str]:
    problems = []
    if type(part.version) is not int or part.version < 1:
        problems.append(f"version is {part.version!r}; it must be an int, at least 1")
    if not isinstance(part.source, str) or not part.source.strip():
        problems.append("source is empty; say where the policy is from")
    doc = part.__dict__.get("__doc__")
    # A dataclass without a docstring is given its signature for one.
    if not doc or doc.startswith(f"{part.__name__}("):
        problems.append(f"the class {part.__name__} has no docstring; say in a line what it does")
    for flag in ("needs_predictor", "cache_aware", "key_at_arrival"):
        if type(getattr(part, flag, False)) is not bool:
            problems.append(f"{flag} is {getattr(part, flag)!r}; it must be True or False")
    if issubclass(part, Chunking) and (type(part.lookahead) is not int or part.lookahead < 0):
        problems.append(f"lookahead is {part.lookahead!r}; it must be an int, at least 0")
    if issubclass(part, Ordering) and part.cache_aware and part.key_at_arrival:
        problems.append("cache_aware and key_at_arrival exclude each other: either hosts read the key again or not")
    for base, methods in ((Ordering, ("key", "choose")), (Chunking, ("grant",)), (Admission, ("admit",))):
        if issubclass(part, base) and all(getattr(part, m) is getattr(base, m) for m in methods):
            problems.append(f"defines no {' or '.join(methods)}")
    if hasattr(part, "observe") and not issubclass(part, Observer):
        problems.append(
            f"has observe but is no Observer, so no host calls it; write class {part.__name__}(..., Observer)"
        )
    return problems


def _round_trip_problems(part: Part) -> list[str]:
    specs = {"ordering": PartSpec("fcfs", {}), "chunking": PartSpec("full", {}), "admission": None}
    specs[part.kind] = PartSpec(part.name, part.params(), part.version)
    spec = PolicySpec(**cast(Any, specs))
    try:
        stored = PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
        if stored != spec:
            return [f"its parameters {part.params()} come back from JSON as {getattr(stored, part.kind).params}"]
        typed = PolicySpec.parse(str(spec))
        if getattr(typed, part.kind) != specs[part.kind]:
            return [f"its parameters {part.params()} come back from {spec} as {getattr(typed, part.kind).params}"]
    except (TypeError, ValueError) as e:
        return [f"its parameters {part.params()} do not survive JSON and the policy string: {_line(e)}"]
    return []


def _behaviour_problems(make: Callable[[], Part], model: CostModel) -> list[str]:
    part = make()
    try:
        part.reset(model)
        if isinstance(part, Chunking):
            part.seat_limit(None)
    except Exception as e:
        return [f"cannot begin a run: {_line(e)}"]
    witness = Witness(part)
    first = answers(witness)
    # With answers like these, comparing them would only repeat what is wrong.
    if witness.problems:
        return witness.problems

    def fresh(believed: CostModel = model, *, backwards: bool = False) -> list[Any]:
        another = make()
        another.reset(believed)
        return answers(Witness(another, thorough=False), backwards=backwards)

    problems = []
    kind = type(part)
    with another_day(kind):
        if fresh() != first:
            problems.append("its answers depend on the clock; the only time it may know is the one in the views")
    with another_hash_seed(kind):
        if fresh() != first:
            problems.append("its answers depend on hash() of something other than a number, which changes by process")
    time.sleep(SLEEP_S)
    if answers(Witness(part, thorough=False)) != first:
        problems.append("its answers change between two times of asking the same questions")
    elif fresh(backwards=True) != first:
        problems.append("its answers depend on what was asked before")
    problems = problems or _reset_problems(part, first, fresh, model)
    if isinstance(part, Ordering) and not problems:
        problems = _cache_problems(part)
    return problems or _rehearsal_problems(lambda: _compose({part.kind: make()}), model)


def _reset_problems(
    part: Part, first: list[Any], fresh: Callable[[CostModel], list[Any]], model: CostModel
) -> list[str]:
    problems = []
    slower = WithMargin(model, relative=Fraction(1, 2))
    if not part.needs_predictor:
        try:
            part.reset(None)
        except Exception as e:
            return [f"reset without a cost model raised {_line(e)}; declare needs_predictor = True"]
        if fresh(slower) != first:
            return ["decides by the cost model; declare needs_predictor = True, so that predictions are recorded"]
    try:
        part.reset(slower)
    except Exception as e:
        return [f"a second reset raised {_line(e)}"]
    if answers(Witness(part, thorough=False)) != fresh(slower):
        problems.append("reset keeps the cost model of an earlier run")
    if not isinstance(part, Observer):
        return problems
    part.reset(model)
    try:
        for step in sample_steps():
            part.observe(step)
    except Exception as e:
        return [*problems, f"observe raised {_line(e)}; it was given {step!r}"]
    witness = Witness(part)
    learned = answers(witness)
    problems += witness.problems
    if isinstance(part, Ordering) and not picks(part) and learned != first:
        problems.append("keys change with what is observed, but hosts read a key once; override choose instead")
    part.reset(model)
    if answers(Witness(part, thorough=False)) != first:
        problems.append("reset does not forget what was observed")
    return problems


def _cache_problems(ordering: Ordering) -> list[str]:
    requests = sample_requests()
    cold = [r._replace(cached_tokens=0) for r in requests]
    warm = [r._replace(cached_tokens=r.prompt_tokens // 2) for r in requests]
    if picks(ordering):
        # One after the other is warm: whoever looks at the cache picks differently at least once.
        queues = [[*cold[:i], warm[i], *cold[i + 1 :]] for i in range(len(requests))]
        follows = len({ordering.choose(queue, 10**10).number for queue in [cold, *queues]}) > 1
    else:
        follows = any(ordering.key(a) != ordering.key(b) for a, b in zip(cold, warm, strict=True))
    if not follows or ordering.cache_aware or ordering.key_at_arrival:
        return []
    return [
        "depends on cached_tokens, which hosts read once, at arrival: declare cache_aware = True to have it read again "
        "when the cache changes, or key_at_arrival = True if once is meant"
    ]


def _rehearsal_problems(make: Callable[[], Policy], model: CostModel) -> list[str]:
    """Run the sample requests three times: fresh, again after a reset, and with fresh parts."""
    policy = make()
    chunking, admission = Witness(policy.chunking), Witness(policy.admission or policy.ordering)

    def grant(batch: BatchView) -> Grant:
        answer = chunking.ask("grant", batch)
        grant_is_fit(chunking, batch, answer)
        if chunking.problems:
            raise Raised
        return cast(Grant, answer)

    def admit(request: RequestView, load: LoadView) -> Decision:
        answer = admission.ask("admit", request, load)
        decision_is_fit(admission, answer)
        if admission.problems:
            raise Raised
        return cast(Decision, answer)

    try:
        log = Rehearsal(policy, model, grant=grant, admit=admit if policy.admission else None).run()
        again = Rehearsal(policy, model).run()
        another = Rehearsal(make(), model).run()
    except Raised:
        return chunking.problems + admission.problems
    except Exception as e:
        return [f"a run of the sample requests stopped: {_line(e)}"]
    if again != log:
        return ["a second run differs from the first: reset does not forget everything"]
    if another != log:
        return ["two fresh runs of the same requests differ"]
    return []
