"""What ``prefillsim why`` prints for people."""

from __future__ import annotations

from typing import Any

from experiments.output import number, say, table
from experiments.why.reasons import ARRIVED, MEANINGS, PHASES, REASONS

Document = dict[str, Any]

SHOWN = 40
"""Rows of what may be long."""

SHORT = {"not yet visible": "unseen"}
"""Names of reasons as columns."""


def show_totals(document: Document) -> None:
    """Print the time waited by reason, and the requests that waited longest."""
    _head(document)
    say(f"{document['requests']:,} requests waited {number(document['waited_s'])} s in all.")
    rows = [
        [
            row["reason"],
            row["meaning"],
            number(row["waited_s"]),
            "-" if row["share"] is None else f"{100 * row['share']:.1f}",
            *(number(row[f"{phase.replace(' ', '_')}_s"]) for phase in PHASES),
            f"{row['requests']:,}",
            number(row["longest_ms"]),
        ]
        for row in document["reasons"]
        if row["waited_s"]
    ]
    table(["reason", "meaning", "s", "%", *PHASES, "requests", "longest ms"], rows, left=2)
    for row in document["turned_away"][:SHOWN]:
        say(f"{row['outcome']}: {row['requests']:,}, the first for: {row['reason']}")
    if len(document["turned_away"]) > SHOWN:
        say(f"... and {len(document['turned_away']) - SHOWN:,} more reasons")
    if not document["slowest"]:
        return
    used = [name for name in REASONS if any(name in row["by_reason_ms"] for row in document["slowest"])]
    say("Waited longest, in ms:")
    lines = [
        [row["request"], number(row["waited_ms"]), *(_dash(row["by_reason_ms"].get(name)) for name in used)]
        for row in document["slowest"]
    ]
    table(["request", "waited", *(SHORT.get(name, name) for name in used)], lines)


def show_request(document: Document) -> None:
    """Print one request's story."""
    _head(document)
    cached = f", {document['cached_tokens']:,} of them cached" if document["cached_tokens"] else ""
    say(
        f"request {document['request']}: arrived at {number(document['arrived_ms'])} ms with "
        f"{document['prompt_tokens']:,} tokens{cached}; waited {number(document['waited_ms'])} ms"
        + "".join(f"; {name} {number(ms)}" for name, ms in document["by_reason_ms"].items())
    )
    story = document["story"]
    shown = story if len(story) <= 2 * SHOWN else [*story[:SHOWN], None, *story[-SHOWN:]]
    rows = []
    for event in shown:
        if event is None:
            rows.append(["...", "", "", "", f"{len(story) - 2 * SHOWN:,} more lines, all in --json", ""])
            continue
        steps = event["steps"]
        rows.append(
            [
                f"{event['from_ms']:,.2f}",
                number(event["to_ms"] - event["from_ms"]) if event["to_ms"] > event["from_ms"] else "",
                "" if steps is None else str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}-{steps[1]}",
                event["state"],
                event["reason"],
                event["text"],
            ]
        )
    table(["at ms", "for ms", "steps", "", "reason", ""], rows, left=6)


def show_step(document: Document) -> None:
    """Print everybody who waited in one step."""
    _head(document)
    say(step_line(document))
    waiting, ended_by = document["waiting"], document["ended_by"]
    if ended_by is not None:
        say(f"Nobody else ran for the reason {ended_by}: {MEANINGS[REASONS.index(ended_by)]}.")
    if not waiting:
        say("Nobody waited.")
        return
    rows = [
        [
            row["request"],
            "-" if row["place"] is None else str(row["place"]),
            f"{row['prompt_tokens']:,}",
            "-" if row["prompt_blocks"] is None else f"{row['prompt_blocks']:,}",
            number(row["waited_ms"]),
            row["state"],
            row["reason"],
        ]
        for row in waiting[:SHOWN]
    ]
    table(["request", "place", "prompt tokens", "KV blocks", "waits for ms", "state", "reason"], rows)
    if len(waiting) > SHOWN:
        say(f"... and {len(waiting) - SHOWN:,} more, all in --json")
    if any(row["reason"] == REASONS[ARRIVED] for row in waiting):
        say(f"{REASONS[ARRIVED]}: {MEANINGS[ARRIVED]}")


def step_line(state: Document) -> str:
    """Return one step as a sentence: when, who got how many tokens, and blocks."""
    prefilled = ", ".join(f"{row['request']}: {row['tokens']:,}" for row in state["prefilled"][:SHOWN])
    at_most = state["prefills_at_most"]
    limit = "" if at_most is None else f" for at most {at_most} prefill{'s'[: at_most != 1]}"
    blocks = "" if state["kv_blocks"] is None else f"; {state['kv_blocks']:,} KV blocks in use"
    if blocks and state["kv_blocks_at_most"] is not None:
        blocks += f" of {state['kv_blocks_at_most']:,}"
    return (
        f"step {state['step']:,} at {state['start_ms']:,.3f} ms for {state['duration_ms']:,.3f} ms: "
        f"{state['decodes']:,} decodes; {state['granted_tokens']:,} tokens granted{limit}; "
        f"prefilled {prefilled or 'nobody'}{blocks}."
    )


def _head(document: Document) -> None:
    say(f"{document['policy']} on {document['trace']} ({document['run']})")
    if document["note"] is not None:
        say(document["note"][0].upper() + document["note"][1:] + ".")


def _dash(value: float | None) -> str:
    return "-" if value is None else number(value)
