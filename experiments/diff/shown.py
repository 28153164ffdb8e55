"""What ``prefillsim diff`` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.output import number, say, table
from experiments.why.shown import step_line

Document = dict[str, Any]

NAMED = 12
"""Requests that a line names."""


def show_diff(document: Document) -> None:
    """Print where two runs part, both states, and what it came to."""
    for name in ("a", "b"):
        head = document[name]
        seed = "" if head["seed"] is None else f", seed {head['seed']}"
        say(f"{name.upper()}: {head['policy']} on {head['trace']}{seed}, {head['host']} ({head['run']})")
    for note in document["notes"]:
        say(f"Note: {note}.")
    steps = document["totals"]["steps"]
    if document["equal"]:
        say(f"No difference in {steps['a']:,} steps.")
        return
    decisions, times = document["decisions"], document["times"]
    if decisions is None:
        say("Every step has the same batch.")
    else:
        say(f"The first step that differs is {decisions['step_of_replica']:,}{_of(decisions)}: {decisions['what']}.")
        _show_states(decisions)
    if times is not None:
        say(f"Times differ from step {times['step_of_replica']:,}{_of(times)} on: {times['what']}.")
    _show_totals(document)


def _of(first: Document) -> str:
    return f" of replica {first['replica']}" if first["replica"] else ""


def _show_states(first: Document) -> None:
    if first["before"] is not None and "batch" in first["before"]:
        say(f"  before: {step_line(first['before'])}")
    for name in ("a", "b"):
        state = first[name]
        if state is None:
            say(f"  {name.upper()} has no such step.")
        elif "batch" not in state:
            counts = state["counts"]
            say(f"  {name.upper()}: " + ", ".join(f"{key} {counts[key]:,}" for key in counts if key != "step"))
        else:
            say(f"  {name.upper()}: {step_line(state)}")
            say(f"     decoding: {_names(state['decoding'])}; waiting: {_names(state['waiting'])}")
            if state["stalled"]:
                say(f"     started, without tokens: {_names(state['stalled'])}")
            if state["preempted"]:
                say(f"     lost their blocks: {_names(state['preempted'])}")
    only = first["only"]
    for name in ("a", "b"):
        parts = []
        if batch := only.get(f"batch_{name}"):
            parts.append("ran " + _names([f"{e['request']} ({e['tokens']:,} tokens)" for e in batch]))
        for what, verb in (("waiting", "waited"), ("preempted", "lost their blocks")):
            if left := only.get(f"{what}_{name}"):
                parts.append(f"{verb}: {_names(left)}")
        if parts:
            say(f"  only in {name.upper()}: {'; '.join(parts)}")


def _show_totals(document: Document) -> None:
    totals = document["totals"]
    if totals["started_before"] is not None:
        say(f"{totals['started_before']:,} of {document['requests']:,} requests had started by then in A.")
    for key, name in (("ttft", "first token"), ("jct", "finish")):
        change = totals[key]
        mean = change["mean_change_ms"]
        if mean is None:
            continue
        most = [
            f"most {way}: {row['request']}, {number(row['a_ms'])} -> {number(row['b_ms'])} ms"
            for way in ("earlier", "later")
            for row in change[f"most_{way}"][:1]
        ]
        counts = f"{change['earlier']:,} earlier, {change['later']:,} later, {change['same']:,} at the same time"
        say(
            f"{name} in B: {counts}; "
            + "; ".join([f"on average {number(abs(mean))} ms {'earlier' if mean < 0 else 'later'}", *most])
        )
    if totals["outcomes"]:
        ends = _names([_outcome(o) for o in totals["outcomes"]])
        say(f"{len(totals['outcomes']):,} requests ended otherwise: {ends}.")
    summary = {key: row for key, row in totals["summary"].items() if row["a"] or row["b"]}
    rows = [[key, *(number(row[c]) for c in ("a", "b", "change"))] for key, row in summary.items()]
    rows.insert(0, ["steps", *(f"{totals['steps'][c]:,}" for c in ("a", "b")), f"{_more(totals['steps']):,}"])
    table(["", "A", "B", "B - A"], rows)


def _more(steps: Document) -> int:
    return int(steps["b"] - steps["a"])


def _outcome(row: Document) -> str:
    return f"{row['request']} ({row['a']} -> {row['b']})"


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return (", ".join(names[:NAMED]) or "nobody") + (f" and {more:,} more" if more > 0 else "")
