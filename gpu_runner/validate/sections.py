"""What a validation report is made of, before it is drawn or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_runner.validate.ends import Row
from gpu_runner.validate.step_times import StepErrors
from gpu_runner.validate.tolerances import Tolerances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "jct": "latency", "goodput": "goodput", "knee": "knee"}

STATISTIC_NAMES = {"mean": "mean", "p50": "median", "p90": "P90", "p99": "P99"}


@dataclass(frozen=True)
class Picture:
    """A figure to be drawn."""

    name: str
    """Of its file."""
    caption: str
    """What it shows and how to read it, in a sentence or two."""
    draw: Callable[[Figure], None]
    width: float = 6.9
    """In inches, as is ``height``."""
    height: float = 2.9


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Sequence[bool | None] = ()
    """Of each row: whether it is as it should be; ``None`` where that is not judged."""
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One question of a validation, and its answer."""

    level: str
    """``L1`` (step times), ``L2`` (schedule) or ``L3`` (end to end)."""
    title: str
    passed: bool | None
    """``None`` where nothing was judged."""
    summary: str
    """The answer in one sentence."""
    tables: Sequence[Grid] = ()
    pictures: Sequence[Picture] = ()
    text: Sequence[str] = ()
    """Paragraphs below."""
    verbatim: str = ""
    """What must keep its columns, like the first difference of two schedules."""
    misses: Sequence[str] = ()
    """One sentence for each figure that is out of tolerance."""
    data: dict[str, Any] = field(default_factory=dict)
    """The same in numbers, JSON types."""

    def to_dict(self) -> dict[str, Any]:
        """Return all but the pictures, as JSON can say it."""
        return {
            "level": self.level,
            "title": self.title,
            "passed": self.passed,
            "summary": self.summary,
            "misses": list(self.misses),
            "text": list(self.text),
            **({"verbatim": self.verbatim} if self.verbatim else {}),
            "tables": [
                {"caption": t.caption, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
                for t in self.tables
            ],
            "pictures": [f"{p.name}.png" for p in self.pictures],
            **self.data,
        }


def figure_name(figure: str) -> str:
    """Return a figure's name for people: ``ttft_p99`` is P99 TTFT."""
    time, _, statistic = figure.partition("_")
    name = NAMES.get(time, time)
    return f"{STATISTIC_NAMES[statistic]} {name}" if statistic else name


def value(figure: str, number: float | None) -> str:
    """Return a figure's value with its unit; a dash for none."""
    if number is None:
        return "–"
    if figure in ("goodput", "knee"):
        return f"{number:.3g} req/s"
    if abs(number) >= 10_000:
        return f"{number / 1000:,.1f} s"
    return f"{number:,.0f} ms" if abs(number) >= 1000 else f"{number:.4g} ms"


def percent(share: float | None, signed: bool = False) -> str:
    """Return a share as percent; a dash for none."""
    if share is None:
        return "–"
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def misses(rows: Sequence[Row], where: str) -> list[str]:
    """Return a sentence for each figure that is out of tolerance."""
    return [
        f"{where}: {figure_name(r.figure)} is simulated as {value(r.figure, r.simulated)} and measured as "
        f"{value(r.figure, r.measured)}, {percent(r.error, signed=True)} where ±{percent(r.allowed)} is allowed"
        for r in rows
        if r.within is False
    ]


def ends_grid(rows: Sequence[Row], caption: str = "") -> Grid:
    """Return the table of a comparison end to end."""
    return Grid(
        ("figure", "measured", "simulated", "error", "engine's spread", "allowed"),
        [
            (
                figure_name(r.figure),
                value(r.figure, r.measured),
                value(r.figure, r.simulated),
                percent(r.error, signed=True),
                percent(r.spread),
                f"±{percent(r.allowed)}",
            )
            for r in rows
        ],
        [r.within for r in rows],
        caption,
    )


def steps_section(errors: StepErrors, tolerances: Tolerances, title: str, **more: Any) -> Section:
    """Return the section on step times, level L1; ``more`` are further fields of :class:`Section`."""
    most = tolerances.of("step")
    passed = errors.mape <= most
    miss = f"L1 {title}: step times are {percent(errors.mape)} off on average where {percent(most)} is allowed"
    columns = ("steps", "mean error", "bias", "worst decile", "worst", "of their sum")
    cells = (
        f"{errors.steps:,}",
        percent(errors.mape),
        percent(errors.bias, signed=True),
        percent(errors.worst_decile),
        percent(errors.worst),
        percent(errors.total, signed=True),
    )
    summary = (
        f"Predicted step times are {percent(errors.mape)} off on average, {percent(errors.bias, signed=True)} on "
        f"balance, over {errors.steps:,} steps."
    )
    tables = [Grid(columns, [cells], [passed]), *more.pop("tables", ())]
    data = {"steps": errors.__dict__, **more.pop("data", {})}
    return Section("L1", title, passed, summary, tables, misses=[] if passed else [miss], data=data, **more)
