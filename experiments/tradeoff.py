"""The trade-off between mean and P99 latency over λ: as a table, a picture and CSV."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.output import number, say, table
from experiments.plotting import BLUE, GREEN, ORANGE, RED, WIDE, new_figure, save_figure
from experiments.report import counted
from experiments.tables import Rows
from experiments.tuning import Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {
    "jct_mean_ms": ("mean", BLUE),
    "jct_p99_ms": ("P99", ORANGE),
    "longest_wait_ms": ("longest wait", GREEN),
}

MS_PER_S = 1000

COLUMNS = (
    "λ\ntokens/s",
    "λ / speed",
    "mean\ns",
    "P99\ns",
    "longest wait\ns",
    "mean vs FCFS\ns",
    "P99 vs FCFS\ns",
    "bound",
)

LOG_SPREAD = 20
"""Axes whose values differ by more than this factor are logarithmic."""


def csv_rows(tuned: Tuned) -> Rows:
    """Return one flat row per λ, in seconds."""
    rows = []
    for row in tuned.curve:
        flat: dict[str, Any] = {"lam": row["lam"], "lam_over_speed": row["lam_over_speed"]}
        for metric in ("jct_p50_ms", *SHOWN):
            name = metric.removesuffix("_ms")
            flat |= dict(zip((f"{name}_s", f"{name}_s_lo", f"{name}_s_hi"), _seconds(row[metric]), strict=True))
        flat["excess_s"] = None if row["excess_ms"] is None else row["excess_ms"] / MS_PER_S
        flat["meets_bound"] = row["meets_bound"]
        flat["chosen"] = tuned.chosen is row
        rows.append(flat)
    return rows


def _seconds(estimate: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    values = (estimate["mean"], *estimate["ci95"])
    a, b, c = (None if v is None else v / MS_PER_S for v in values)
    return a, b, c


def show_tradeoff(tuned: Tuned) -> None:
    """Print the curve, the choice and what the other seeds say."""
    cell = tuned.experiment.cells[0]
    seeds = sorted({c.seed for c in tuned.experiment.cells})
    many = len(seeds) > 1
    say(
        f"{cell.source.label}, {counted(len(seeds), 'seed')}, {cell.label}; P99 latency at most {_bound(tuned)}; "
        f"the engine prefills {tuned.speed:,.0f} tokens/s"
    )
    table(
        COLUMNS,
        [_line(row, tuned) for row in tuned.curve],
    )
    if many:
        say("±: half-width of the 95 % t-interval over seeds; differences from λ=inf (FCFS) are paired by seed.")
    say(_verdict(tuned))
    for row in tuned.check:
        mean, p99 = row["jct_mean_ms"], row["jct_p99_ms"]
        say(
            f"On {counted(len(mean['per_seed']), 'other seed')} λ={_lam(row['lam'])} has mean {_with_half(mean)} s and "
            f"P99 {_with_half(p99)} s, {_against_bound(row['excess_ms'])}."
        )


def _line(row: dict[str, Any], tuned: Tuned) -> list[str]:
    verdict = "chosen" if row is tuned.chosen else "tied" if row["lam"] in tuned.tied else ""
    return [
        _lam(row["lam"]),
        "inf" if math.isinf(row["lam"]) else f"{row['lam_over_speed']:.3g}",
        *(_with_half(row[metric]) for metric in SHOWN),
        *(_with_half(_as_estimate(row["versus_fcfs"][metric])) for metric in ("jct_mean_ms", "jct_p99_ms")),
        verdict or ("kept" if row["meets_bound"] else "broken"),
    ]


def _as_estimate(change: dict[str, Any]) -> dict[str, Any]:
    return {"mean": change["difference"], "ci95": change["ci95"]}


def _with_half(estimate: dict[str, Any]) -> str:
    mean, lo, hi = _seconds(estimate)
    return number(mean) if lo is None or hi is None else f"{number(mean)} ±{number((hi - lo) / 2)}"


def _lam(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:g}"


def _against_bound(excess_ms: float | None) -> str:
    if excess_ms is None:
        return "not measured against the bound"
    if not excess_ms:
        return "which is the bound"
    return f"{abs(excess_ms) / MS_PER_S:.3g} s {'above' if excess_ms > 0 else 'below'} the bound"


def _bound(tuned: Tuned) -> str:
    bound = tuned.bound
    return f"{bound.times_fcfs:g} times FCFS's" if bound.ms is None else f"{bound.ms / MS_PER_S:g} s"


def _verdict(tuned: Tuned) -> str:
    if tuned.chosen is None:
        nearest = tuned.nearest
        if nearest["excess_ms"] is None:
            return "No λ keeps the bound: under none was a P99 measured on any seed."
        over = f"{nearest['excess_ms'] / MS_PER_S:.3g} s above it"
        if nearest["excess_ms"] <= 0:
            over = f"under which {counted(nearest['unfinished'], 'request')} did not finish"
        return f"No λ keeps the bound; the nearest is λ={_lam(nearest['lam'])}, {over}."
    others = [_lam(lam) for lam in tuned.tied if lam != tuned.chosen["lam"]]
    tied = f"; no paired interval tells its mean from that of λ={', '.join(others)}" if others else ""
    return (
        f"λ={_lam(tuned.chosen['lam'])} has the least mean of those that keep the bound{tied}. "
        "Another GPU or model needs λ in proportion to its tokens/s."
    )


def write_tradeoff(tuned: Tuned, folder: Path, stem: str = "tradeoff") -> list[Path]:
    """Write ``STEM.png``, ``STEM.pdf`` and ``STEM.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    rows = csv_rows(tuned)
    with new_figure(WIDE, 2.9) as figure:
        left, right = figure.subplots(1, 2)
        _over_lam(left, rows)
        _plane(right, rows, tuned)
        cell = tuned.experiment.cells[0]
        n = len({c.seed for c in tuned.experiment.cells})
        figure.suptitle(
            f"{cell.source.label}: {cell.label} over λ, {counted(n, 'seed')}" + ", 95 % intervals" * (n > 1)
        )
        return save_figure(figure, folder, stem, rows)


def _over_lam(axis: Axes, rows: Rows) -> None:
    at = range(len(rows))
    for metric, (name, colour) in SHOWN.items():
        key = metric.removesuffix("_ms")
        known = [i for i in at if rows[i][f"{key}_s"] is not None]
        axis.plot(known, [rows[i][f"{key}_s"] for i in known], "o-", color=colour, label=name)
        banded = [i for i in known if rows[i][f"{key}_s_lo"] is not None]
        axis.fill_between(
            banded,
            [rows[i][f"{key}_s_lo"] for i in banded],
            [rows[i][f"{key}_s_hi"] for i in banded],
            color=colour,
            alpha=0.18,
        )
    chosen = [i for i in at if rows[i]["chosen"]]
    for i in chosen:
        axis.axvline(i, color=RED, linestyle="--", linewidth=1.0)
        axis.annotate("chosen", (i, 1), xycoords=("data", "axes fraction"), color=RED, fontsize=8, ha="center")
    axis.set_xticks(list(at), [_lam(row["lam"]) for row in rows], rotation=90)
    _scale(axis, "y", [row[f"{metric.removesuffix('_ms')}_s"] for row in rows for metric in SHOWN])
    axis.set_xlabel("λ (tokens/s)")
    axis.set_ylabel("latency (s)")
    axis.legend(loc="best", fontsize=7)


def _plane(axis: Axes, rows: Rows, tuned: Tuned) -> None:
    known = [row for row in rows if row["jct_p99_s"] is not None]
    axis.plot([r["jct_p99_s"] for r in known], [r["jct_mean_s"] for r in known], "-", color="0.7", zorder=1)
    for row in known:
        colour = RED if row["chosen"] else BLUE if row["meets_bound"] else "0.6"
        axis.plot(row["jct_p99_s"], row["jct_mean_s"], "o", color=colour)
    ends = {0.0: "0", math.inf: "inf"} | ({tuned.chosen["lam"]: _lam(tuned.chosen["lam"])} if tuned.chosen else {})
    for row in known:
        if row["lam"] in ends:
            axis.annotate(
                f"λ={ends[row['lam']]}",
                (row["jct_p99_s"], row["jct_mean_s"]),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8,
            )
    limit = tuned.bound.ms
    if limit is None:
        fcfs = next(row["jct_p99_s"] for row in rows if math.isinf(row["lam"]))
        limit = None if fcfs is None or tuned.bound.times_fcfs is None else tuned.bound.times_fcfs * fcfs * MS_PER_S
    if limit is not None:
        axis.axvline(limit / MS_PER_S, color=RED, linestyle="--", linewidth=1.0)
    _scale(axis, "x", [row["jct_p99_s"] for row in rows])
    _scale(axis, "y", [row["jct_mean_s"] for row in rows])
    axis.set_xlabel("P99 latency (s); dashed: bound")
    axis.set_ylabel("mean latency (s)")


def _scale(axis: Axes, which: str, values: list[float | None]) -> None:
    """Make an axis of times logarithmic where they differ much, and write its numbers out."""
    known = [v for v in values if v]
    if known and max(known) > LOG_SPREAD * min(known):
        axis.set(**{f"{which}scale": "log"})
        (axis.xaxis if which == "x" else axis.yaxis).set_major_formatter("{x:g}")
