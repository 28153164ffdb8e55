"""The sections of a validation end to end: latencies and goodput, and the knee."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_runner.validate.ends import FEWEST_REPEATS, Row, Sample, compare
from gpu_runner.validate.pictures import cdf_picture, error_picture
from gpu_runner.validate.sections import Section, ends_grid, misses, percent
from gpu_runner.validate.tolerances import Tolerances


def verdict(rows: Sequence[Row]) -> tuple[bool | None, str]:
    """Return whether all that can be judged is within what is allowed, and say so in a sentence."""
    judged = [r for r in rows if r.within is not None]
    if not judged:
        return None, "Nothing was measured."
    worst = max((r.error for r in judged if r.error is not None), key=abs, default=None)
    good = sum(bool(r.within) for r in judged)
    return good == len(judged), (
        f"{good} of {len(judged)} figures are within what is allowed; the largest error is "
        f"{percent(worst, signed=True)}."
    )


def ends_section(
    label: str,
    measured: Sequence[Sample],
    simulated: Sequence[Sample],
    tolerances: Tolerances,
    rho: tuple[float | None, float | None] | None = None,
    name: str = "",
) -> Section:
    """Return the section on a comparison end to end, level L3.

    Args:
        label: what was run.
        measured: repeats on the engine.
        simulated: runs of the simulator.
        tolerances: of the figures.
        rho: offered rate over the largest stable rate, on the engine and in the simulator, where known.
        name: ends the names of the pictures, where a report has several such sections.
    """
    rows = compare([s.figures for s in measured], [s.figures for s in simulated], tolerances)
    title = label
    text = []
    if rho is not None:
        shown = ["unknown" if r is None else f"{r:.2f}" for r in rho]
        title += f" at ρ {shown[0]}"
        text.append(
            f"Offered rate over the largest stable rate: {shown[0]} on the engine, {shown[1]} in the simulator."
        )
    if len(measured) < FEWEST_REPEATS:
        text.append("With fewer than three repeats the engine's own spread is not known.")
    found = misses(rows, f"L3 {title}")
    passed, summary = verdict(rows)
    pictures = []
    # Without a first token there is nothing to draw.
    if all(len(s.times["ttft"]) for s in (*measured, *simulated)):
        pictures = [cdf_picture(measured, simulated, name=f"cdf{name}"), error_picture(rows, name=f"errors{name}")]
    return Section(
        "L3",
        title,
        passed,
        summary,
        tables=[ends_grid(rows)],
        pictures=pictures,
        text=text,
        misses=found,
        data={
            "rho": None if rho is None else list(rho),
            "figures": [r.to_dict() for r in rows],
            "repeats": len(measured),
        },
    )


def knee_section(label: str, measured: float | None, simulated: float | None, tolerances: Tolerances) -> Section:
    """Return the section on the largest stable rates, in requests per second; ``None`` where no rate was stable."""
    rows = compare([{"knee": measured}], [{"knee": simulated}], tolerances, ["knee"])
    found = misses(rows, f"L3 knee of {label}")
    passed, summary = verdict(rows)
    return Section(
        "L3",
        f"knee of {label}",
        passed,
        summary,
        tables=[ends_grid(rows)],
        misses=found,
        data={"knee": [r.to_dict() for r in rows]},
    )
