"""The catalogue of policies, from the registry and the classes' own documentation."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from experiments.catalogue import describe_part
from experiments.documents_text import DASH, anchor, as_markdown, code, filled, table
from policies.base import Chunking, Observer, Ordering, Part, QueueObserver
from policies.registry import ALIASES, KINDS, parts

SERVING = "--workload mixed --limit 300 --seeds 3 --slo ttft:1000,tpot_p99:25"
PREFILL_ONLY = (
    "--workload post-recommendation:arrivals=requests --limit 300 --rate 2 --seeds 3 \\\n"
    "        --gpu l4 --llm llama-3.1-8b --mode hybrid"
)

HEAD = """# Policies

Made from the code by `make docs`; a test fails where the two differ, and others run the examples.

A policy is `ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]]`, or an alias; any ordering goes with any
chunking. `prefillsim policies show NAME` prints what stands here. The words are defined in [concepts.md](concepts.md);
[notebooks/my_policy.py](../notebooks/my_policy.py) shows how to write a policy of your own. A default of – means
that the parameter is not set."""

KIND_HEADS = {
    "ordering": "An ordering chooses among requests that have not started; a prefill that has started goes on first. "
    "With a *key* a choice among n that wait costs O(log n), for keys are kept in order; without one it looks at all. "
    "`make bench` prints what a decision costs over the depth of the queue.",
    "chunking": "A chunking grants a number of prefill tokens to each step. Tokens are handed out in order, each "
    "request filled before the next. Where a deadline is filled, the chunk is found by the cost model's `max_chunk`: "
    "in closed form where the model is linear, by bisection otherwise.",
    "admission": "An admission accepts an arrival, rejects it, or sends it to another replica. It is optional.",
}

ALIAS_HEAD = "Names of whole policies. Parameters after an alias go to the part that has them: `sloweave:margin=5%`."

EXAMPLES: dict[tuple[str, str], tuple[str, str, str]] = {
    ("ordering", "srjf-static"): (PREFILL_ONLY, "srjf-static+full", "fcfs+full"),
    ("ordering", "srjf-calibrated"): (PREFILL_ONLY, "srjf-calibrated:lam=200+full", "srjf-static+full"),
    ("ordering", "lpm"): (PREFILL_ONLY, "lpm+full", "prefillonly"),
    ("ordering", "k-lpm"): (PREFILL_ONLY, "k-lpm:k=8+full", "prefillonly"),
    ("ordering", "dfs-weight"): (PREFILL_ONLY, "dfs-weight+full", "prefillonly"),
    ("ordering", "hrrn"): (PREFILL_ONLY, "hrrn:most=128+full", "prefillonly"),
    ("ordering", "edf"): (SERVING, "edf:ttft=500+deadline-fill", "sloweave"),
    ("ordering", "two-lane"): (SERVING, "two-lane:short=512,wait=500+deadline-fill", "sloweave"),
    ("ordering", "qoserve"): (SERVING, "qoserve+qoserve", "sloweave"),
    ("ordering", "lars"): (SERVING, "lars:stretch=3+deadline-fill", "sloweave"),
    ("chunking", "full"): (SERVING, "fcfs+full", "sloweave"),
    ("chunking", "fixed"): (SERVING, "fcfs+fixed:chunk=256", "sloweave"),
    ("chunking", "token-budget"): (SERVING, "fcfs+token-budget:budget=1024,threshold=512", "sarathi"),
    ("chunking", "deadline-fill"): (SERVING, "fcfs+deadline-fill:tpot=20,margin=5%", "sloweave"),
    ("chunking", "deadline-slots"): (SERVING, "fcfs+deadline-slots:slots=8", "sloweave"),
    ("chunking", "guarded"): (SERVING, "fcfs+guarded:window=200,margin=2%", "sloweave"),
    ("chunking", "p-pas"): (SERVING, "fcfs+p-pas:low=512,high=4096", "vllm-default"),
    ("chunking", "qoserve"): (SERVING, "fcfs+qoserve:margin=10%", "fcfs+deadline-sum"),
    ("admission", "decode-saturation"): (SERVING, "sloweave+decode-saturation:fraction=0.8", "sloweave"),
    ("admission", "queue-limit"): (SERVING, "sloweave+queue-limit:limit=50", "sloweave"),
}
"""Scenario, policy and rival by kind and name, where the defaults are no telling example."""


def policies_page() -> str:
    """Return the page: what the project ships, not plug-ins that happen to be loaded."""
    shipped = {
        kind: [part for part in parts(kind).values() if part.__module__.startswith("policies.")] for kind in KINDS
    }
    sections = [HEAD, _overview(shipped), "## Aliases", ALIAS_HEAD, _aliases()]
    for kind in KINDS:
        sections += [f"## {kind.capitalize()}s", filled(KIND_HEADS[kind])]
        for part in shipped[kind]:
            sections += _part_section(part)
    return "\n\n".join(sections) + "\n"


def example(kind: str, name: str) -> str:
    """Return a command that compares a part with a rival."""
    scenario, policy, rival = EXAMPLES.get((kind, name), (SERVING, _default_policy(kind, name), "sloweave"))
    return f"    prefillsim compare {scenario} \\\n        -p {policy} -p {rival}"


def _default_policy(kind: str, name: str) -> str:
    return {
        "ordering": f"{name}+deadline-fill",
        "chunking": f"fcfs+{name}",
        "admission": f"sloweave+{name}",
    }[kind]


def _overview(shipped: dict[str, list[type[Part]]]) -> str:
    rows = []
    for kind, found in shipped.items():
        for part in found:
            described = describe_part(part)
            rows.append([kind, f"[{code(part.name)}](#{anchor(_title(part))})", as_markdown(described["summary"])])
    return table(["part", "name", "what it does"], rows)


def _aliases() -> str:
    return table(["alias", "stands for"], [[code(name), code(text)] for name, text in ALIASES.items()])


def _title(part: type[Part]) -> str:
    return f"{part.kind} {part.name}"


def _part_section(part: type[Part]) -> list[str]:
    described = describe_part(part)
    facts = [f"Source: {as_markdown(part.source)}.", *_facts(part)]
    if part.version != 1:
        facts.insert(0, f"Version {part.version}.")
    section = [f"### {part.kind} `{part.name}`", as_markdown(inspect.getdoc(part) or ""), filled(" ".join(facts))]
    if described["parameters"]:
        hints = get_type_hints(part, include_extras=True)
        rows = [
            [code(p["name"]), _default(p["default"]), allowed(hints[p["name"]]), as_markdown(p["doc"])]
            for p in described["parameters"]
        ]
        section.append(table(["parameter", "default", "allowed", "what it means"], rows))
    section.append(example(part.kind, part.name))
    return section


def _default(value: Any) -> str:
    if value is None:
        return DASH
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f"{value:g}" if isinstance(value, float) else str(value))


def _facts(part: type[Part]) -> list[str]:
    """Return what can be told from the class: what a decision looks at, what it costs, what it needs."""
    facts = []
    if issubclass(part, Ordering):
        facts.append(_ordering_fact(part))
    if issubclass(part, QueueObserver):
        facts.append("It is told who comes to wait and who is taken.")
    if issubclass(part, Chunking):
        facts.append(_chunking_fact(part))
    if issubclass(part, Observer):
        facts.append("It learns from every step, so stretches of decodes are gone through step by step.")
    if part.needs_predictor:
        facts.append("It needs a cost model to believe (`--policy-cost-model`; by default the one that is charged).")
    return facts


def _ordering_fact(part: type[Ordering]) -> str:
    if part.choose is not Ordering.choose:
        return "Decision: no key; each choice looks at all that wait."
    if part.cache_aware:
        return "Decision: a key, read again when a cache event or a preemption touches the request."
    return "Decision: a key, read once, at arrival."


def _chunking_fact(part: type[Chunking]) -> str:
    lookahead = part().lookahead  # which may depend on a parameter
    if lookahead == 0:
        seen = "prefills that have started"
    elif lookahead == 1:
        seen = "prefills that have started, or else the next one that waits"
    else:
        seen = f"prefills that have started, then those that wait, up to {lookahead} in all"
    return f"Decision: looks at {seen}."


def allowed(hint: Any) -> str:
    """Return the values that a parameter's annotation allows, in short: ``whole number ≥ 1``, ``a or b``, ``text``."""
    names: list[str] = []
    bounds: list[str] = []
    _collect(hint, names, bounds)
    return " ".join([" or ".join(names), *bounds])


def _collect(hint: Any, names: list[str], bounds: list[str]) -> None:
    if hasattr(hint, "__metadata__"):
        _collect(hint.__origin__, names, bounds)
        for constraint in hint.__metadata__:
            for kind, sign, field in ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt")):
                if isinstance(constraint, kind):
                    bounds.append(f"{sign} {getattr(constraint, field)}")
    elif get_origin(hint) is Literal:
        names += [code(str(value)) for value in get_args(hint)]
    elif get_args(hint):
        for choice in get_args(hint):
            if choice is not type(None):
                _collect(choice, names, bounds)
    else:
        names.append({int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}[hint])
