"""On a GPU: peak memory by mode, maximum input length, and whether prompts of that length really fit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from gpu_runner.hybrid.baselines import chunked_prefill, whole_prefill
from gpu_runner.hybrid.memory import measure
from gpu_runner.hybrid.mil import MODES, SWITCHES, Measured
from gpu_runner.hybrid.on_gpu_book import Part
from gpu_runner.hybrid.on_gpu_subject import Subject
from gpu_runner.hybrid.prefill import Prefiller

MAIN = ("paged", "chunked", "hybrid")
STEP = 16
TRIED = (1.0, 0.98, 0.95, 0.9, 0.8)
"""Shares of the calculated length that are tried until one fits."""


def memory(subject: Subject, part: Part) -> None:
    """Measure peaks, and calculate the maximum input length in each room from the last two of a mode.

    Beside the allocator's numbers stand those of the tracker on tensors without memory.
    """
    sizes = subject.sizes
    tracked = Measured(subject.shape, chunk=sizes.chunk)
    modes = [*MAIN, *(mode for mode in MODES if mode not in MAIN)]
    room = max(subject.rooms().values())
    peaks: dict[str, list[tuple[int, int, int]]] = {}
    peak_bytes(subject, "paged", sizes.peaks[0])  # libraries take their workspaces once
    for mode, tokens in part.cases(itertools.product(modes, sizes.peaks)):
        expected = tracked.peak_bytes(mode, tokens)
        if expected > room:
            continue
        subject.free()
        peak = peak_bytes(subject, mode, tokens)
        peaks.setdefault(mode, []).append((tokens, peak, expected))
        part.add(mode=mode, tokens=tokens, peak_bytes=peak, tracked_bytes=expected)
    part.summary["peak_over_tracked"] = {
        mode: max(row["peak_bytes"] / row["tracked_bytes"] for row in part.rows if row["mode"] == mode)
        for mode in peaks
    }
    part.summary["max_input_length"] = {
        card: {
            mode: {
                "measured": _longest([(n, peak) for n, peak, _ in points], room),
                "tracked": _longest([(n, peak) for n, _, peak in points], room),
            }
            for mode, points in peaks.items()
            if len(points) > 1
        }
        for card, room in subject.rooms().items()
    }


def limits(subject: Subject, part: Part, found: Mapping[str, Any]) -> None:
    """Run prompts of about the calculated lengths with no more memory than the room.

    Args:
        subject: what runs.
        part: a row for each try.
        found: the summary of :func:`memory`, with the lengths that it has calculated.
    """
    lengths: dict[str, dict[str, dict[str, int]]] = found.get("max_input_length", {})
    subject.hold(0)
    tries = [
        (card, mode, lengths[card][mode]["measured"])
        for mode in MAIN
        for card in sorted(lengths, key=lambda c: (c == "this", c))
        if mode in lengths[card]
    ]
    for card, mode, longest in part.cases(tries, lambda case: 2 * subject.expected_s(case[2])):
        for share in part.cases(TRIED, lambda share, n=longest: subject.expected_s(int(n * share))):  # type: ignore[misc]
            tokens = int(longest * share) // STEP * STEP
            fitted = tokens > 0 and fits(subject, mode, tokens, subject.rooms()[card])
            part.add(card=card, mode=mode, tokens=tokens, share=share, fits=fitted)
            if fitted:
                break
    ran: dict[str, dict[str, int]] = {}
    for row in part.rows:
        if row["fits"]:
            ran.setdefault(row["card"], {})[row["mode"]] = row["tokens"]
    part.summary["ran"] = ran


def run_mode(of: Prefiller, mode: str, ids: Any, chunk: int) -> Any:
    """Prefill in one of ``mil.MODES``."""
    if mode == "paged":
        return whole_prefill(of, ids)
    if mode == "chunked":
        return chunked_prefill(of, ids, chunk)
    return of.with_switches(SWITCHES[mode](chunk)).prefill(ids)


def peak_bytes(subject: Subject, mode: str, tokens: int) -> int:
    """Return what a prefill takes at its peak beside the weights, calculated without memory where there is no GPU."""
    of = subject.prefiller if subject.on_gpu else subject.prefiller.without_memory()
    ids = torch.zeros(tokens, dtype=torch.long, device=of.device)
    return measure(lambda: run_mode(of, mode, ids, subject.sizes.chunk), of.device).peak


def fits(subject: Subject, mode: str, tokens: int, room: int) -> bool:
    """Say whether a prefill runs with ``room`` bytes beside the weights, fragmentation and all."""
    if not subject.on_gpu:
        return peak_bytes(subject, mode, tokens) <= room
    subject.free()
    total = torch.cuda.get_device_properties(subject.device).total_memory
    share = (torch.cuda.memory_reserved(subject.device) + room) / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), subject.device)
    try:
        ids = subject.ids(tokens)
        subject.timed(lambda: run_mode(subject.prefiller, mode, ids, subject.sizes.chunk))
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, subject.device)
    return True


def _longest(points: list[tuple[int, int]], room: int) -> int:
    (a, at_a), (b, at_b) = points[-2:]
    return max(0, int(b + (room - at_b) * (b - a) / (at_b - at_a))) // STEP * STEP
