"""The bar that shows how far a sweep is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from experiments.cells import Cell
from experiments.run import CellResult

FORMAT = "{percentage:3.0f}%|{bar}| {desc}, {rate_fmt}, {elapsed} so far, {remaining} to go"


def bar(results: Iterable[CellResult], cells: Mapping[str, Cell], progress: bool) -> Iterator[CellResult]:
    """Yield results; with ``progress``, draw on stderr how far they are, how fast that goes and how long it will take.

    By requests, for runs differ in length.
    """
    if not progress:
        yield from results
        return
    from tqdm import tqdm

    failed = 0
    with tqdm(
        total=sum(cell.requests for cell in cells.values()),
        unit=" requests",
        unit_scale=True,
        bar_format=FORMAT,
        file=sys.stderr,
        dynamic_ncols=True,
        leave=False,
    ) as drawn:
        drawn.set_description_str(_done(0, len(cells), failed))
        for finished, result in enumerate(results, 1):
            failed += result.error is not None
            drawn.set_description_str(_done(finished, len(cells), failed), refresh=False)
            drawn.update(cells[result.key].requests)
            yield result


def _done(finished: int, runs: int, failed: int) -> str:
    return f"{finished}/{runs} runs" + (f", {failed} failed" if failed else "")
