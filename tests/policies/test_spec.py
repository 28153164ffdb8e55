"""Policies as text and JSON: both give the same policy back, and a mistake gives one sentence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ALIASES, PolicyError, PolicySpec, parse_policy, registry
from tests.policies.strategies import PARAMETERS, stored_policy
from tests.seeded import cases, seeded

quickly = settings(deadline=None, max_examples=120)


def bare(spec: PolicySpec) -> tuple[Any, ...]:
    """Return a spec without its label."""
    return spec.ordering, spec.chunking, spec.admission


def test_every_part_is_drawn_with_every_parameter() -> None:
    """Else the round trips below would leave a new part out."""
    assert set(PARAMETERS) == {(kind, name) for kind in registry.KINDS for name in registry.parts(kind)}
    for (kind, name), known in PARAMETERS.items():
        assert set(known) == set(registry.find(kind, name)().params())


@cases(200, stored_policy)
def test_json_and_the_policy_string_give_the_policy_back(stored: dict[str, Any]) -> None:
    spec = PolicySpec.from_dict(stored)
    through_json = PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert through_json == spec
    typed = PolicySpec.parse(str(spec))
    assert bare(typed) == bare(spec)
    assert str(typed) == str(spec)
    assert [p.params() for p in typed.build().parts] == [p.params() for p in spec.build().parts]


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_the_policy_that_it_stands_for(alias: str) -> None:
    assert bare(PolicySpec.parse(alias)) == bare(PolicySpec.parse(ALIASES[alias]))
    assert parse_policy(alias).label == alias
    assert PolicySpec.parse(f"{alias}+queue-limit:limit=7").admission is not None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("sarathi:budget=64", "fcfs+token-budget:budget=64"),
        ("sloweave:tpot=25,cap=8", "fcfs+deadline-fill:tpot=25,cap=8"),
        ("prefillonly:lam=0", "srjf-calibrated:lam=0+full"),
        (" fcfs + fixed : chunk = 64 ", "fcfs+fixed:chunk=64"),
        ("srjf-calibrated:lam=1e+3+full", "srjf-calibrated:lam=1000+full"),
        ("edf:ttft=inf+full", "edf:ttft=Infinity+full"),
        ("fcfs:+full", "fcfs+full"),
    ],
)
def test_ways_to_write_the_same(text: str, same: str) -> None:
    assert bare(PolicySpec.parse(text)) == bare(PolicySpec.parse(same))


MISTAKES = {
    "": "policy '' has an empty part; it should read ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]]",
    "fcfs+": "policy 'fcfs+' has an empty part",
    "+full": "policy '+full' has an empty part",
    ":lam=3+full": "policy ':lam=3+full' has an empty part",
    "fcfs": "policy 'fcfs' should read ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]], like "
    "fcfs+fixed:chunk=256, or an alias (sloweave, vllm-default, sarathi, prefillonly)",
    "sloweav": "; did you mean sloweave?",
    "fcf": "; did you mean fcfs?",
    "fcfs+full+queue-limit+fcfs": "policy 'fcfs+full+queue-limit+fcfs' should read",
    "sloweave+queue-limit+queue-limit": "policy 'sloweave+queue-limit+queue-limit' should read",
    "srjf-statik+full": "unknown ordering srjf-statik; did you mean srjf-static? (orderings: ",
    "fcfs+ful": "unknown chunking ful; did you mean full? (chunkings: ",
    "fcfs+full+queue-limits": "unknown admission queue-limits; did you mean queue-limit? (admissions: ",
    "zzzz+full": "unknown ordering zzzz (orderings: ",
    "full+fcfs": "full is a chunking, not an ordering; write ordering+chunking[+admission]",
    "fcfs+fcfs": "fcfs is an ordering, not a chunking; write",
    "fcfs+full+full": "full is a chunking, not an admission; write",
    "fcfs+queue-limit": "queue-limit is an admission, not a chunking; write",
    "sloweave+full": "full is a chunking, not an admission; write",
    "fcfs+fixed:chunks=3": "chunking fixed has no parameter chunks; did you mean chunk? (parameters: chunk)",
    "fcfs:lam=3+full": "ordering fcfs has no parameter lam (parameters: none)",
    "fcfs+fixed:chunk=0": "chunking fixed: chunk=0: input should be greater than or equal to 1",
    "fcfs+fixed:chunk=-3": "chunking fixed: chunk=-3: input should be greater than or equal to 1",
    "fcfs+fixed:chunk=2.5": "chunking fixed: chunk=2.5: input should be a valid integer",
    "fcfs+fixed:chunk=many": "chunking fixed: chunk=many: input should be a valid integer",
    "fcfs+fixed:chunk=1,chunk=2": "policy 'fcfs+fixed:chunk=1,chunk=2': chunk is given twice",
    "fcfs+fixed:chunk": "policy 'fcfs+fixed:chunk': 'chunk' should read name=value",
    "fcfs+fixed:chunk=": "policy 'fcfs+fixed:chunk=': 'chunk=' should read name=value",
    "fcfs+fixed:=3": "policy 'fcfs+fixed:=3': '=3' should read name=value",
    "srjf-calibrated:lam=-1+full": "ordering srjf-calibrated: lam=-1: input should be greater than or equal to 0",
    "srjf-calibrated:lam=nan+full": "ordering srjf-calibrated: lam=nan: input should be",
    "edf:ttft=0+full": "ordering edf: ttft=0: input should be greater than 0",
    "sarathi:lam=5": "alias sarathi has no parameter lam (parameters: budget, seqs, threshold)",
    "sarathi:budgt=5": "alias sarathi has no parameter budgt; did you mean budget? (parameters: budget, seqs, thres",
    "sarathi:budget=0": "chunking token-budget: budget=0: input should be greater than or equal to 1",
    "fcfs+full+queue-limit:limit=0": "admission queue-limit: limit=0: input should be greater than or equal to 1",
    "fcfs+full+queue-limit:action=drop": "admission queue-limit: action=drop: input should be 'reject' or 'redirect'",
    "fcfs+full+decode-saturation:fraction=inf": "admission decode-saturation: fraction=inf: input should be a finite",
    "sloweave:tpot=0": "chunking deadline-fill: tpot=0: input should be greater than 0",
    "sloweave:tpot=nan": "chunking deadline-fill: tpot=nan: input should be",
    "sloweave:margin=lots": "chunking deadline-fill: margin 'lots' is not one of: milliseconds (0.5), a share of the "
    "prediction (5%), a quantile of the cost model (p99)",
    "sloweave:margin=-1": "chunking deadline-fill: margin '-1' is not one of",
    "sloweave:margin=p0": "chunking deadline-fill: margin 'p0': a quantile lies between p0 and p100",
    "sloweave:margin=p100": "chunking deadline-fill: margin 'p100': a quantile lies between p0 and p100",
    "sloweave:margin=p99%": "chunking deadline-fill: margin 'p99%' is not one of",
    "sloweave:margins=a": "chunking deadline-fill: margins='a' should read tenant:ms|tenant:ms, like interactive:2",
    "sloweave:margins=a:x": "chunking deadline-fill: margins='a:x' should read",
    "sloweave:margins=a:-1": "chunking deadline-fill: margins='a:-1' should read",
    "sloweave:margins=a:inf": "chunking deadline-fill: margins='a:inf' should read",
    "sloweave:margins=:1": "chunking deadline-fill: margins=':1' should read",
    "sloweave:margins=a:1|a:2": "chunking deadline-fill: margins='a:1|a:2' gives tenant a twice",
    "sloweave:age=5": "chunking deadline-fill: age and overrun go together",
    "sloweave:overrun=5": "chunking deadline-fill: age and overrun go together",
    "sloweave:age=5,overrun=inf": "chunking deadline-fill: overrun=inf: input should be a finite number",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gives_one_sentence(text: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(MISTAKES[text])) as e:
        PolicySpec.parse(text)
    assert "\n" not in str(e.value)


words = st.sampled_from(
    [*ALIASES, *(n for k in registry.KINDS for n in registry.parts(k)), *"+:,=|%", "chunk=3", "lam=1e+9", "tpot=", "0"]
)


@quickly
@given(st.text() | st.lists(words).map("".join) | st.lists(words | st.text(max_size=3)).map("+".join))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    try:
        spec = PolicySpec.parse(text)
    except PolicyError:
        return
    assert bare(PolicySpec.parse(str(spec))) == bare(spec)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@quickly
@given(seeded(stored_policy), st.data())
def test_any_json_is_a_policy_or_a_policy_error(stored: dict[str, Any], data: st.DataObject) -> None:
    """One place of a well-formed policy is overwritten by anything."""
    path = data.draw(
        st.sampled_from(
            [(), *((k,) for k in stored), *((k, f) for k in registry.KINDS for f in ("name", "version", "params"))]
        )
    )
    value = data.draw(json_values)
    broken: Any = value if not path else stored
    if path:
        home = stored
        for key in path[:-1]:
            home = home[key] or {}
        home[path[-1]] = value
    try:
        spec = PolicySpec.from_dict(broken)
    except PolicyError:
        return
    assert bare(PolicySpec.parse(str(spec))) == bare(spec)


def stored(**changes: Any) -> dict[str, Any]:
    return PolicySpec.parse("fcfs+fixed:chunk=3").to_dict() | changes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a stored policy is a JSON object, not list"),
        (stored(ordering=None), "a stored policy needs its ordering"),
        (stored(chunking=None), "a stored policy needs its chunking"),
        (stored(chunking="fixed"), 'a stored chunking should read {"name": ..., "version": ..., "params": {...}}'),
        (stored(chunking={"name": "fixed"}), "a stored chunking should read"),
        (stored(chunking={"name": "fixe", "version": 1, "params": {}}), "unknown chunking fixe; did you mean fixed?"),
        (stored(chunking={"name": "fixed", "version": 1, "params": {"chunk": 0}}), "chunking fixed: chunk=0: input"),
        (
            stored(chunking={"name": "fixed", "version": 1, "params": {"size": 1}}),
            "chunking fixed has no parameter size",
        ),
        (
            stored(chunking={"name": "fixed", "version": 2, "params": {"chunk": 3}}),
            "chunking fixed is at version 1 now; the result was made with version 2, which decides differently",
        ),
    ],
)
def test_a_stored_policy_that_cannot_be_built_again_is_refused(data: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        PolicySpec.from_dict(data)


def test_infinity_is_written_as_json_can() -> None:
    text = json.dumps(PolicySpec.parse("edf:ttft=inf+full").to_dict(), allow_nan=False)
    assert json.loads(text)["ordering"]["params"] == {"ttft": "inf"}
