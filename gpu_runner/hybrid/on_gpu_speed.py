"""On a GPU: throughput of plain, chunked and hybrid prefill of one long prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from gpu_runner.hybrid.baselines import chunked_prefill, whole_prefill
from gpu_runner.hybrid.execute import PLAIN, Switches
from gpu_runner.hybrid.on_gpu_book import Part
from gpu_runner.hybrid.on_gpu_subject import Subject

ROUNDS = 5
PAPER_CHUNKED = -0.14
"""Throughput of chunked prefill beside whole prefill: 20,000 tokens, chunks of 512 (PrefillOnly §2)."""


def speed(subject: Subject, part: Part) -> None:
    """Time the modes in turns, after one run of each that does not count.

    ``host_s`` is the time until the host had started everything: where it is near ``seconds``, the GPU waits for the
    host, and the row says little about kernels.
    """
    sizes, of = subject.sizes, subject.prefiller
    ids = subject.ids(sizes.speed)
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: whole_prefill(of, ids),
        f"chunked {sizes.chunked}": lambda: chunked_prefill(of, ids, sizes.chunked),
        f"hybrid {sizes.chunk}": lambda: of.prefill(ids),
        f"hybrid {sizes.chunked}": lambda: of.with_switches(Switches(sizes.chunked)).prefill(ids),
        "discard": lambda: of.with_switches(PLAIN).prefill(ids),
    }
    for run in runs.values():
        subject.timed(run)
        subject.free()
    for number in part.cases(range(ROUNDS)):
        for mode, run in runs.items():
            seconds, host = subject.timed(run)
            part.add(mode=mode, round=number, tokens=sizes.speed, seconds=seconds, host_s=host)
    medians = {mode: statistics.median(r["seconds"] for r in part.rows if r["mode"] == mode) for mode in runs}
    part.summary |= {
        "tokens_per_s": {mode: sizes.speed / s for mode, s in medians.items()},
        "throughput_beside_plain": {mode: medians["plain"] / s - 1 for mode, s in medians.items() if mode != "plain"},
        "paper_chunked": PAPER_CHUNKED,
    }
