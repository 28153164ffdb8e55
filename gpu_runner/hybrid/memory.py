"""Bytes of live tensors while something runs: from the CUDA allocator, or from a tracker where there is no memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Trace:
    """What was measured, in bytes; what was alive before is not in it.

    Attributes:
        peak: most bytes alive at once.
        series: (operators so far, bytes alive) whenever that changed; empty where the allocator was asked.
    """

    peak: int = 0
    series: list[tuple[int, int]] = field(default_factory=list)


def envelope(trace: Trace, points: int) -> list[tuple[int, int, int]]:
    """Return ``points`` spans of equally many operators: how many had run at its end, least and most bytes alive in it.

    The most of all spans is the trace's peak.
    """
    last = trace.series[-1][0] if trace.series else 0
    spans = []
    live = at = 0
    for k in range(1, points + 1):
        end = k * last // points
        low = high = live
        while at < len(trace.series) and trace.series[at][0] <= end:
            live = trace.series[at][1]
            low, high = min(low, live), max(high, live)
            at += 1
        spans.append((end, low, high))
    return spans


class Tracker(TorchDispatchMode):
    """Counts the bytes of the storages that operators make while it is entered, until each of them dies.

    What an operator allocates inside and frees before it returns is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace()
        self.live = 0
        self._operators = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        self._operators += 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in before and storage._cdata not in self._known:
                    self._watch(storage)
        return result

    def _watch(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()

        def died(_: Any) -> None:
            del self._known[key]
            self._change(-size)

        self._known[key] = weakref.ref(storage, died)
        self._change(size)

    def _change(self, size: int) -> None:
        self.live += size
        self.trace.peak = max(self.trace.peak, self.live)
        self.trace.series.append((self._operators, self.live))


def measure(run: Callable[[], Any], device: Any) -> Trace:
    """Run something and return the memory that it took beside what was there before.

    On CUDA the allocator says how much, on other devices :class:`Tracker`. On the meta device nothing is computed and
    no memory is taken.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return Trace(torch.cuda.max_memory_allocated(device) - before)
    tracker = Tracker()
    with tracker:
        run()
    return tracker.trace
