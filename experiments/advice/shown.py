"""An advice as it is printed and kept: words, tables, command lines, JSON, a page and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.advice.flags import Start, start_of
from experiments.advice.found import Advice
from experiments.advice.warnings import warnings_of
from experiments.advice.words import DEFINITIONS, PERCENT, answer, look_lines, sureness
from experiments.cells import json_bytes
from experiments.compare import Estimate
from experiments.documents_text import table as markdown_table
from experiments.output import number, say, table, wrapped
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE, new_figure, save_figure
from experiments.report import COLUMNS, counted
from experiments.tables import Rows, csv_bytes
from sim.stats import t_interval
from sim.store import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEM = "advice"

HEADINGS = ("policy", "attains\n%", "behind\npoints", *(COLUMNS[m] for m in ("goodput", "ttft_p99_ms", "tpot_p99_ms")))

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, "black", "0.5", RED)

SPREAD = 6
"""Numbers of replicas that differ by more than this factor are drawn on a logarithmic axis."""

SHORT = 22
"""Names of policies on the picture have a line per part beyond this."""


def starts_of(advice: Advice) -> list[tuple[str, Start]]:
    """Return command lines with what each is for: the policy recommended, and the best that vLLM has by itself."""
    best = advice.choice.recommended.policy
    starts = [(f"To serve with {best}", start_of(advice.task, best))]
    if not starts[0][1].stock and starts[0][1].program[0] == "vllm":
        starts.append((f"Without a scheduler class, {advice.stock}", start_of(advice.task, advice.stock)))
    return starts


def show_advice(advice: Advice) -> None:
    """Print the answer, the finalists, the command lines and how sure it is."""
    say(*look_lines(advice), "", *filter(None, answer(advice)))
    verdict = f"{PERCENT * advice.level:g} %"
    table([*HEADINGS, verdict], [[wrapped(row[0]), *row[1:]] for row in _lines(advice)])
    for what, start in starts_of(advice):
        say(f"{what}:", "", *(f"    {line}" for line in start.lines), "")
        say(*(f"({note}.)" for note in start.notes))
    say(*sureness(advice))


def page(advice: Advice) -> str:
    """Return the advice as a Markdown page."""
    lines = [line.replace("\n", " ") for line in HEADINGS]
    parts = [
        f"# Advice on {advice.task.cell.source.label}",
        " ".join(filter(None, answer(advice))),
        " ".join(look_lines(advice)),
        markdown_table([*lines, f"{PERCENT * advice.level:g} %"], _lines(advice)),
        f"![Attainment by policy and number of replicas]({STEM}.png)",
    ]
    for what, start in starts_of(advice):
        parts += [f"{what}:", "\n".join(f"    {line}" for line in start.lines)]
        parts += [f"{note[0].upper()}{note[1:]}." for note in start.notes]
    parts += ["## How sure", " ".join(sureness(advice))]
    if found := warnings_of(advice):
        parts += ["## Warnings", "\n".join(f"- {text}" for text in found)]
    parts += ["## What was tried", markdown_table(["policy", "attains %, by tuning seed", "round"], _tried(advice))]
    return "\n\n".join(parts) + "\n"


def document(advice: Advice) -> dict[str, Any]:
    """Return the JSON form."""
    cell, span, default = advice.task.cell, advice.span, advice.default
    best, second = advice.choice.recommended, advice.choice.runner_up()
    return {
        "answer": list(filter(None, answer(advice))),
        "policy": best.policy,
        "reached": advice.reached,
        "replicas": {"compared_on": advice.at, "surely_suffice": span.holds, "surely_do_not": span.breaks},
        "replicas_of_default": default and {"surely_suffice": default.holds, "surely_do_not": default.breaks},
        "router": advice.router,
        "routers": advice.routers,
        "runner_up": second and second.policy,
        "stock": advice.stock,
        "tied": [s.policy for s in advice.choice.tied],
        "start": [
            {"what": what, "command": s.command, "stock": s.stock, "notes": s.notes} for what, s in starts_of(advice)
        ],
        "finalists": [
            {
                "policy": s.policy,
                "family": s.candidate.family,
                "verdict": s.verdict.value,
                "behind": {"mean": s.behind.mean, "ci95": s.behind[1:], "p": s.p},
                **{metric: e.document() for metric, e in s.metrics.items()},
            }
            for s in advice.choice.standings
        ],
        "attained": {policy: {str(n): v for n, v in sorted(by.items())} for policy, by in advice.attained.items()},
        "own_arrivals": advice.own
        and {
            "attainment": advice.own.attainment,
            "default": advice.own.default,
            "replicas": advice.own.replicas,
        },
        "tuned": [
            {"policy": t.candidate.policy, "family": t.candidate.family, "attained": t.attainments, "round": t.round}
            for t in advice.tuned
        ],
        "trace": cell.source.label,
        "look": advice.task.look.document(),
        "objectives": str(cell.objectives),
        "level": advice.level,
        "seeds": list(advice.task.seeds),
        "cost_model": cell.cost.to_dict(),
        "memory": cell.memory and cell.memory.to_dict(),
        "runs": advice.runs.finished(),
        "warnings": warnings_of(advice),
        "definitions": DEFINITIONS,
        "package": cell.resolved()["package"],
    }


def write_advice(advice: Advice, folder: Path) -> list[Path]:
    """Write ``advice.json``, ``advice.md``, ``tried.csv`` and the picture with its numbers; return their paths.

    Raises:
        OSError: if they cannot be written.
    """
    texts = {
        f"{STEM}.json": json_bytes(document(advice)),
        f"{STEM}.md": page(advice).encode(errors="replace"),
        "tried.csv": csv_bytes(_tried_rows(advice)),
    }
    for name, content in texts.items():
        atomic_write(folder / name, content)
    return [*(folder / name for name in texts), *_picture(advice, folder)]


def _lines(advice: Advice) -> list[list[str]]:
    return [
        [
            s.policy,
            _with_half(s.metrics["slo_attainment"], PERCENT),
            "" if s is advice.choice.best else _behind(s.behind.mean, s.behind.lo, s.behind.hi),
            *(_with_half(s.metrics[m]) for m in ("goodput", "ttft_p99_ms", "tpot_p99_ms")),
            s.verdict.value,
        ]
        for s in advice.choice.standings
    ]


def _with_half(estimate: Estimate, scale: float = 1.0) -> str:
    if estimate.mean is None:
        return "-"
    half = estimate.half_width
    return number(scale * estimate.mean) + ("" if half is None else f" ±{number(scale * half)}")


def _behind(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None or low is None or high is None:
        return "-"
    return f"{number(PERCENT * mean)} ±{number(PERCENT * (high - low) / 2)}"


def _tried(advice: Advice) -> list[list[str]]:
    return [
        [t.candidate.policy, ", ".join(number(PERCENT * a) for a in t.attainments), str(t.round)] for t in advice.tuned
    ]


def _tried_rows(advice: Advice) -> Rows:
    return [
        {
            "policy": t.candidate.policy,
            "family": t.candidate.family,
            "round": t.round,
            "replicas": advice.rough.replicas,
            "seeds": len(t.attainments),
            "attainment": t.attainment,
            "lateness_ms": t.lateness_ms,
        }
        for t in advice.tuned
    ]


def picture_rows(advice: Advice) -> Rows:
    """Return one row per finalist and number of replicas: attainment on the fresh seeds with its 95 % interval."""
    rows: Rows = []
    for standing in advice.choice.standings:
        by = advice.attained[standing.policy]
        for n in sorted(by):
            mean, lo, hi = t_interval(by[n])
            ends = (None if lo is None else max(lo, 0.0), None if hi is None else min(hi, 1.0))
            rows.append(
                {
                    "policy": standing.policy,
                    "replicas": n,
                    "attainment": mean,
                    "ci95_lo": ends[0],
                    "ci95_hi": ends[1],
                    "seeds": len(by[n]),
                    "level": advice.level,
                    "recommended": standing is advice.choice.recommended,
                }
            )
    return rows


def _picture(advice: Advice, folder: Path) -> list[Path]:
    rows = picture_rows(advice)
    height = max(2.6, 1.1 + 0.42 * len(advice.choice.standings))
    with new_figure(WIDE, height) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _finalists(left, advice, [row for row in rows if row["replicas"] == advice.at])
        _replicas(right, advice, rows)
        task = advice.task
        figure.suptitle(
            f"{task.cell.source.label}, {number(task.look.rate)} requests/s: {counted(len(task.seeds), 'seed')}, "
            "95 % intervals"
        )
        return save_figure(figure, folder, STEM, rows)


def _finalists(axis: Axes, advice: Advice, rows: Rows) -> None:
    for y, row in enumerate(rows):
        mean = PERCENT * row["attainment"]
        error = [[mean - PERCENT * row["ci95_lo"]], [PERCENT * row["ci95_hi"] - mean]]
        colour = COLOURS[y % len(COLOURS)]
        axis.errorbar(mean, y, xerr=error, fmt="o", color=colour, markersize=9 if row["recommended"] else 5)
    names = [_short(row["policy"]) + ("\n(recommended)" if row["recommended"] else "") for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=7)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    _level(axis.axvline, advice)
    axis.set_xlim(-3, 103)
    axis.grid(False, axis="y")
    axis.set_xlabel(f"attainment on {counted(advice.at, 'replica')} (%)")


def _replicas(axis: Axes, advice: Advice, rows: Rows) -> None:
    for k, standing in enumerate(advice.choice.standings):
        own = [row for row in rows if row["policy"] == standing.policy]
        means = [PERCENT * row["attainment"] for row in own]
        error = [
            [m - PERCENT * row["ci95_lo"] for m, row in zip(means, own, strict=True)],
            [PERCENT * row["ci95_hi"] - m for m, row in zip(means, own, strict=True)],
        ]
        n = [row["replicas"] for row in own]
        axis.errorbar(n, means, yerr=error, fmt="o-", color=COLOURS[k % len(COLOURS)], markersize=4)
    _level(axis.axhline, advice)
    ticks = sorted({row["replicas"] for row in rows})
    if ticks[-1] > SPREAD * ticks[0]:
        axis.set_xscale("log")
        axis.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
        ticks = [n for n in ticks if n & (n - 1) == 0 or n in (advice.at, ticks[-1])]
        axis.minorticks_off()
    else:
        axis.set_xlim(ticks[0] - 0.5, ticks[-1] + 0.5)
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.set_ylim(-3, 103)
    axis.set_xlabel("replicas (colours as on the left)")
    axis.set_ylabel("attainment (%)")


def _level(line: Any, advice: Advice) -> None:
    line(PERCENT * advice.level, color=RED, linestyle="--", linewidth=1.0)


def _short(policy: str) -> str:
    return policy if len(policy) <= SHORT else policy.replace("+", "+\n").replace(",", ",\n")
