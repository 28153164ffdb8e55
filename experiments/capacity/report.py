"""Capacities for people: a table with paired ratios, and a picture of attainment over the rate, with CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.capacity.estimate import surely_higher
from experiments.capacity.found import Found, Measured
from experiments.output import number, say, table, wrapped
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE, new_figure, save_figure
from experiments.report import counted, objectives_line
from experiments.tables import Rows
from sim.stats import Interval, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, "black", "0.5")

STEM = "capacity"

SHOWN = (0.4, 1.7)
"""Rates that are drawn, in units of the lowest and the highest capacity."""

COLUMNS = (
    "policy",
    "attains\n%",
    "surely up to\nreq/s",
    "surely not at\nreq/s",
    "estimate\nreq/s",
    "× the first",
    "rates",
    "runs",
)


def curve_rows(measured: Measured) -> Rows:
    """Return one row per policy and rate that was run: attainment with its 95 % interval over seeds, as shares."""
    rows: Rows = []
    for policy, values in measured.values.items():
        for place in sorted(values):
            mean, lo, hi = t_interval(values[place])
            rows.append(
                {
                    "policy": policy,
                    "rate": measured.rate(place),
                    "seeds": len(values[place]),
                    "attainment": mean,
                    "ci95_lo": None if lo is None else max(lo, 0.0),
                    "ci95_hi": None if hi is None else min(hi, 1.0),
                }
            )
    return rows


def show_capacity(measured: Measured) -> None:
    """Print what was found, what its confidence is, and what it took."""
    cell = measured.sweep.experiment.cells[0]
    say(f"{cell.source.label}, {counted(cell.requests, 'request')} a run, {objectives_line(str(cell.objectives))}")
    say(*filter(None, [cell.replicas]))
    table(COLUMNS, [_line(found, measured) for found in measured.found])
    low, high = measured.rate(0), measured.rate(measured.design.grid.size)
    runs = len(measured.sweep.experiment.cells)
    if measured.seeded:
        say(
            f"Capacity lies between the two rates, {100 * measured.design.confidence:g} % sure per line: "
            f"{measured.design.most_tests} t-tests share the rest, each of at most {measured.design.seeds} seeds. "
            "± and ratios: 95 %, jackknife over the seeds that both policies have run."
        )
    say(f"Rates from {number(low)} to {number(high)} requests/s were open to the search; it took {runs:,} runs.")
    say(*(sentence for level in measured.levels if (sentence := _order(measured, level))))


def _line(found: Found, measured: Measured) -> list[str]:
    capacity, first = found.capacity, measured.of(measured.policies[0], found.capacity.level)
    compared = "" if found is first else _with_half(measured.versus(found, first), digits=3)
    return [
        wrapped(found.policy),
        f"{100 * capacity.level:g}",
        _rate(measured.rate(capacity.holds)) if capacity.holds is not None else f"below {_lowest(measured)}",
        _rate(measured.rate(capacity.breaks)) if capacity.breaks is not None else f"above {_highest(measured)}",
        _with_half(found.estimate, digits=4),
        compared,
        str(capacity.visited),
        str(sum(map(len, measured.values[found.policy].values()))),
    ]


def _lowest(measured: Measured) -> str:
    return _rate(measured.rate(0))


def _highest(measured: Measured) -> str:
    return _rate(measured.rate(measured.design.grid.size))


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _with_half(interval: Interval, digits: int) -> str:
    mean, lo, hi = interval
    if mean is None:
        return "-"
    half = "" if lo is None or hi is None else f" ±{(hi - lo) / 2:.2g}"
    return f"{mean:.{digits}g}{half}"


def _order(measured: Measured, level: float) -> str:
    """Return which policies are surely ahead of which at a level; empty where there is one policy."""
    found = [measured.of(policy, level) for policy in measured.policies]
    if len(found) < 2:
        return ""
    at = f"At {100 * level:g} %"
    ahead = [f"{a.policy} before {b.policy}" for a in found for b in found if surely_higher(a.capacity, b.capacity)]
    return f"{at} surely: {'; '.join(ahead)}." if ahead else f"{at} no policy is surely ahead: the intervals overlap."


def write_capacity(measured: Measured, folder: Path) -> list[Path]:
    """Write ``capacity.png``, ``capacity.pdf`` and, with the curves, ``capacity.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    rows = curve_rows(measured)
    ends = [e for f in measured.found for e in (measured.rate(f.capacity.holds), measured.rate(f.capacity.breaks)) if e]
    lines = len(measured.policies) * len(measured.levels)
    with new_figure(WIDE, max(2.9, 1.3 + 0.2 * lines)) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _curves(left, measured, rows)
        _intervals(right, measured)
        if ends:
            left.set_xlim(SHOWN[0] * min(ends), SHOWN[1] * max(ends))
            _span(right, min(ends), max(ends))
        cell = measured.sweep.experiment.cells[0]
        sure = f"{100 * measured.design.confidence:g} % intervals" if measured.seeded else "one trace"
        figure.suptitle(f"{cell.source.label}: rates at which requests meet {cell.objectives or 'their own'}, {sure}")
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(measured.policies), 3)
        )
        return save_figure(figure, folder, STEM, rows)


def _curves(axis: Axes, measured: Measured, rows: Rows) -> None:
    for k, policy in enumerate(measured.policies):
        own: list[dict[str, Any]] = [r for r in rows if r["policy"] == policy]
        colour = COLOURS[k % len(COLOURS)]
        x, y = [r["rate"] for r in own], [100 * r["attainment"] for r in own]
        axis.plot(x, y, "o-", color=colour, label=policy, markersize=3)
        banded = [r for r in own if r["ci95_lo"] is not None]
        axis.fill_between(
            [r["rate"] for r in banded],
            [100 * r["ci95_lo"] for r in banded],
            [100 * r["ci95_hi"] for r in banded],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    for level in measured.levels:
        axis.axhline(100 * level, color="black", linestyle=":", linewidth=1.0)
        axis.annotate(
            f"{100 * level:g} %",
            (1, 100 * level),
            xycoords=("axes fraction", "data"),
            fontsize=7,
            va="bottom",
            ha="right",
        )
    axis.set_ylim(0, 103)
    axis.set_xlabel("rate (requests/s)")
    axis.set_ylabel("attainment (%)")


def _intervals(axis: Axes, measured: Measured) -> None:
    """Draw a bar from the rate that surely holds to the one that surely breaks; arrows where the range ends first."""
    labels, at = [], 0.0
    for k, policy in enumerate(measured.policies):
        for level in measured.levels:
            found = measured.of(policy, level)
            low, high = (measured.rate(end) for end in (found.capacity.holds, found.capacity.breaks))
            colour = COLOURS[k % len(COLOURS)]
            labels.append((at, f"{policy if level == measured.levels[0] else ''} {100 * level:g} %"))
            if low is not None and high is not None:
                axis.plot([low, high], [at, at], "|-", color=colour, linewidth=5, markersize=10, solid_capstyle="butt")
                if found.estimate.mean is not None:
                    axis.plot(found.estimate.mean, at, "o", color="white", markersize=3, zorder=3)
            elif low is not None:
                axis.plot(low, at, ">", color=colour, markersize=7)
            elif high is not None:
                axis.plot(high, at, "<", color=colour, markersize=7)
            else:
                axis.annotate("unclear", (0.5, at), xycoords=("axes fraction", "data"), va="center", fontsize=8)
            at += 1.0
        at += 0.5
    axis.set_yticks([y for y, _ in labels], [wrapped(text) for _, text in labels], fontsize=7)
    axis.set_ylim(at - 0.8, -0.8)
    axis.grid(False, axis="y")
    axis.set_xlabel("capacity (requests/s)")


def _span(axis: Axes, low: float, high: float) -> None:
    room = 0.08 * (high - low) or 0.1 * high
    axis.set_xlim(low - room, high + room)
