"""What happened to single requests, in words and as a strip: waited for what, chunked how, preempted when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.chunks import chunks_of
from experiments.output import number
from experiments.recorded import Recorded
from policies.units import MS, NS
from sim.gaps import pauses_of
from sim.records import FINISHED, NULL, Columns

MOST_CHUNKS = 12
"""Chunks that are told one by one."""

BY_TTFT, BY_GAP = 6, 4
"""Requests that are told about: the slowest to start, and those with the longest gap between two tokens."""

STRIP = 680.0
"""Width of a strip in user units."""


@dataclass(frozen=True)
class Story:
    """One request: a heading, sentences, and its time as a strip."""

    request: str
    heading: str
    sentences: list[str]
    strip: str


class Storyteller:
    """Tells about the requests of one run."""

    def __init__(self, run: Recorded) -> None:
        self.run = run
        self._requests, self._steps = run.tables.requests, run.tables.steps
        self._ends = self._steps["start_ns"] + self._steps["duration_ns"]
        self.chunks = chunks_of(run.tables)
        self._pauses = pauses_of(run.tables.preemptions)

    def slowest(self) -> list[Story]:
        """Return the stories of the requests that waited longest for their first token, or for a later one."""
        requests = self._requests
        wait = np.where(requests["ttft_ns"] >= 0, requests["ttft_ns"], requests["jct_ns"])
        chosen = [i for i in np.argsort(-wait, kind="stable")[:BY_TTFT].tolist() if wait[i] >= 0]
        gaps = requests["itl_max_ns"]
        chosen += [i for i in np.argsort(-gaps, kind="stable")[:BY_GAP].tolist() if gaps[i] >= 0 and i not in chosen]
        return [self.story(i) for i in chosen]

    def story(self, i: int) -> Story:
        """Return the story of the request in row ``i``."""
        row = {name: values[i] for name, values in self._requests.items()}
        prompt = f"prompt of {int(row['prompt_tokens']):,} tokens"
        if row["cached_tokens"] > 0:
            prompt += f", {int(row['cached_tokens']):,} of them cached"
        heading = f"{prompt}; {int(row['generated_tokens']):,} of {int(row['output_tokens']):,} output tokens"
        sentences = [f"Arrived at {row['arrival_ns'] / NS:.3f} s."]
        sentences += [*self._waiting(i, row), *self._prefill(i, row), *self._preempted(i), *self._decoding(row)]
        return Story(str(row["id"]), heading, sentences, self._strip(i, row))

    def _waiting(self, i: int, row: dict[str, Any]) -> list[str]:
        arrival, begin = int(row["arrival_ns"]), int(row["first_scheduled_ns"])
        if not len(self._ends):
            return []
        if begin < 0:
            return ["It was never scheduled."]
        if begin == arrival:
            return ["It started at once."]
        told = f"Waited {_ms(begin - arrival)}"
        requests = self._requests
        same = requests["replica"] == row["replica"]
        same[i] = False
        meanwhile = same & (requests["first_scheduled_ns"] >= arrival) & (requests["first_scheduled_ns"] < begin)
        before = int(np.count_nonzero(meanwhile & (requests["arrival_ns"] <= arrival)))
        after = int(np.count_nonzero(meanwhile)) - before
        own = self._steps["replica"] == row["replica"]
        start, ends = self._steps["start_ns"][own], self._ends[own]
        overlap = np.clip(np.minimum(ends, begin) - np.maximum(start, arrival), 0, None)
        prefilling = overlap[self._steps["prefill_tokens"][own] > 0].sum()
        decoding = overlap.sum() - prefilling
        parts = []
        if prefilling:
            parts.append(f"{_ms(prefilling)} of steps that prefilled others")
        if decoding:
            parts.append(f"{_ms(decoding)} of steps that only decoded")
        sentences = [f"{told}: {' and '.join(parts)}." if parts else f"{told}."]
        if before or after:
            overtaken = f", and {after:,} later {'one' if after == 1 else 'ones'} overtook it" if after else ""
            sentences.append(f"Meanwhile {_count(before, 'earlier request')} started{overtaken}.")
        return sentences

    def _prefill(self, i: int, row: dict[str, Any]) -> list[str]:
        begin, first = int(row["first_scheduled_ns"]), int(row["first_token_ns"])
        if begin < 0:
            return [] if first < 0 else [f"First token after {_ms(first - row['arrival_ns'])}{self._over(row)}."]
        n = int(row["chunks"])
        told = f"Prefilled in {_count(n, 'chunk')}"
        if self.chunks is not None:
            sizes = self.chunks["tokens"][self.chunks["request"] == i].tolist()
            shown = ", ".join(f"{size:,}" for size in sizes[:MOST_CHUNKS])
            more = len(sizes) - MOST_CHUNKS
            told += f" of {shown}{f' and {more} more' if more > 0 else ''} tokens"
        if row["aged_chunks"] > 0:
            told += f", {int(row['aged_chunks'])} of them over a deadline on purpose"
        if first < 0:
            return [f"{told}, and got no token."]
        return [f"{told} over {_ms(first - begin)}; first token {_ms(row['ttft_ns'])} after arrival{self._over(row)}."]

    def _over(self, row: dict[str, Any]) -> str:
        own = int(row["slo_ttft_ns"])
        bound = own if own >= 0 else self.run.objectives.ttft
        if bound is None or row["ttft_ns"] <= bound:
            return ""
        return f", {_ms(row['ttft_ns'] - bound)} over its objective"

    def _preempted(self, i: int) -> list[str]:
        table = self.run.tables.preemptions
        told = []
        for k in np.flatnonzero(table["request"] == i).tolist():
            step, until = int(table["step"][k]), int(table["until"][k])
            when = f"Lost its KV blocks at {self._steps['start_ns'][step] / NS:.3f} s"
            if until >= 0:
                told.append(
                    f"{when}; its next token came {_ms(self._ends[until] - self._steps['start_ns'][step])} later."
                )
            else:
                told.append(f"{when} and got no further token.")
        return told

    def _decoding(self, row: dict[str, Any]) -> list[str]:
        told = []
        if row["itl_max_ns"] >= 0:
            told.append(
                f"Gaps between tokens: {_ms(row['tpot_mean_ns'])} on average, {_ms(row['itl_max_ns'])} the longest."
            )
        if row["slo_exceptions"] > 0:
            told.append(f"{_count(int(row['slo_exceptions']), 'step')} overran its deadline on purpose.")
        if row["outcome"] == FINISHED:
            told.append(f"Finished {_ms(row['jct_ns'])} after arrival.")
        elif row.get("reason") is not None:
            told.append(f"Not served whole: {row['reason']}.")
        else:
            told.append("Unfinished at the end of the run.")
        return told

    def _strip(self, i: int, row: dict[str, Any]) -> str:
        arrival = int(row["arrival_ns"])
        last = int(self._ends.max()) if len(self._ends) else arrival
        begin, first, end = (int(row[c]) for c in ("first_scheduled_ns", "first_token_ns", "finished_ns"))
        end = end if end >= 0 else max(last, first, arrival)
        span = max(end - arrival, 1)
        parts = [("waits", arrival, begin if begin >= 0 else first if first >= 0 else end)]
        if begin >= 0:
            parts.append(("prefills", begin, first if first >= 0 else end))
        if first >= 0:
            parts.append(("decodes", first, end))
        own = self._pauses["request"] == i
        for after, until in zip(self._pauses["after"][own].tolist(), self._pauses["until"][own].tolist(), strict=True):
            parts.append(("preempted", int(self._ends[after]), int(self._ends[until])))
        if self.chunks is not None:
            of_it = self.chunks["step"][self.chunks["request"] == i]
            for step in of_it[:400].tolist():
                parts.append(("chunk", int(self._steps["start_ns"][step]), int(self._ends[step])))
        drawn = []
        for kind, a, b in parts:
            x = STRIP * min(max((a - arrival) / span, 0.0), 1.0)
            width = max(STRIP * min((b - arrival) / span, 1.0) - x, 0.6 if kind == "chunk" else 0.0)
            inside = ' y="3" height="10"' if kind == "chunk" else ' y="0" height="16"'
            drawn.append(f'<rect class="{kind}" x="{x:.1f}"{inside} width="{width:.1f}"/>')
        return (
            f'<svg class="strip" viewBox="0 0 {STRIP:.0f} 16" preserveAspectRatio="none" role="img" '
            f'aria-label="waiting, prefilling and decoding over time">{"".join(drawn)}</svg>'
        )


def outcomes(run: Recorded) -> list[tuple[str, int]]:
    """Return what became of the requests that did not finish, and of steps over their deadlines: text and count."""
    requests = run.tables.requests
    found: dict[str, int] = {}
    reasons = requests.get("reason", np.full(len(requests["outcome"]), None, dtype=object))
    others = np.flatnonzero(requests["outcome"] != FINISHED)
    for i in others.tolist():
        code = int(requests["outcome"][i])
        kind = ("finished", "rejected", "redirected", "unfinished")[max(code, 0)]
        reason = reasons[i]
        text = f"{kind}: {_general(str(reason))}" if reason is not None else kind
        found[text] = found.get(text, 0) + 1
    rows = sorted(found.items(), key=lambda item: -item[1])
    rows += _exceptions(run.tables.steps, requests)
    return rows


def _exceptions(steps: Columns, requests: Columns) -> list[tuple[str, int]]:
    rows = []
    for text, count in (
        ("steps over a deadline on purpose", int((steps["exception"] > 0).sum())),
        ("requests that such steps have delayed", int((requests["slo_exceptions"] > 0).sum())),
        ("prefill chunks in such steps", int(requests["aged_chunks"][requests["aged_chunks"] != NULL].sum())),
    ):
        if count:
            rows.append((text, count))
    return rows


def _general(reason: str) -> str:
    """Return a reason with its numbers left out, so that equal ones are counted together."""
    words = "".join("#" if c.isdigit() else c for c in reason)
    while "##" in words:
        words = words.replace("##", "#")
    return words.replace("#,#", "#").replace("#.#", "#")[:160]


def _ms(ns: Any) -> str:
    ms = float(ns) / MS
    return f"{number(ms / 1000)} s" if ms >= 10_000 else f"{number(ms)} ms"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
