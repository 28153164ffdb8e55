"""What a regression check has found: for a terminal, a pull request, a CI server, and as JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from experiments.output import say, table, wrapped
from experiments.regress.baseline import baseline_path
from experiments.regress.check import Outcome, Row
from experiments.report import SHOWN_ROWS, counted

ORDER = ("worse", "better", "changed", "unchanged")

COLUMNS = ("policy", "trace", "figure", "baseline", "now", "difference", "allowed", "verdict")

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may have, escaped or not."""


def document(outcome: Outcome) -> dict[str, Any]:
    """Return the JSON form."""
    return {
        "file": str(outcome.check.file),
        "baseline": str(outcome.check.baseline_file),
        "passed": outcome.passed,
        "verdict": verdict_line(outcome),
        "faults": outcome.faults,
        "failures": outcome.failures,
        "figures": [
            {
                "policy": row.cell.policy,
                "trace": row.cell.trace,
                "point": row.cell.point,
                "figure": row.metric.name,
                "baseline": row.then,
                "now": row.now,
                "difference": row.difference.mean,
                "ci95": (row.difference.lo, row.difference.hi),
                "percent": row.percent.mean,
                "tolerance_percent": row.tolerance,
                "verdict": row.verdict,
            }
            for row in outcome.rows
        ],
    }


def verdict_line(outcome: Outcome) -> str:
    """Return the whole in one sentence, with the command that accepts it where there is something to accept."""
    counts, total = outcome.counts, len(outcome.rows)
    if outcome.failures:
        return f"{counted(len(outcome.failures), 'run')} failed"
    if outcome.passed and not counts["better"]:
        if counts["changed"]:
            return f"{_of(counts['changed'], total)} different, within the tolerances{_version(outcome)}"
        return f"all {total} figures are those of the baseline"
    found = []
    if counts["worse"]:
        found.append(f"{_of(counts['worse'], total)} worse than the tolerances allow")
    if counts["better"]:
        found.append(f"{_of(counts['better'], total)} better than the baseline")
    if outcome.faults:
        found.append("baseline and file are not about the same runs")
    meant = "keep that with" if outcome.passed else "if that is meant,"
    return f"{', '.join(found)}{_version(outcome)}; {meant} `{_update_command(outcome)}`"


def _of(n: int, total: int) -> str:
    return f"{n} of {total} figures {'is' if n == 1 else 'are'}"


def _version(outcome: Outcome) -> str:
    return f" (made by prefillsim {outcome.other_version})" if outcome.other_version else ""


def _update_command(outcome: Outcome) -> str:
    check = outcome.check
    elsewhere = [] if check.baseline_file == baseline_path(check.file) else ["--baseline", str(check.baseline_file)]
    return shlex.join(["prefillsim", "regress", str(check.file), *elsewhere, "--update"])


def show(outcome: Outcome) -> None:
    """Print what differs, what does not fit, and the verdict."""
    rows = _sorted(outcome.rows)
    if rows:
        cells = [[wrapped(row.cell.policy), *_cells(row)[1:]] for row in rows[:SHOWN_ROWS]]
        table(COLUMNS, cells, left=3)
        if len(rows) > SHOWN_ROWS:
            say(f"... and {len(rows) - SHOWN_ROWS} more; --markdown and --json have all")
    say(*(f"does not fit: {fault}" for fault in outcome.faults), f"{outcome.check.file}: {verdict_line(outcome)}")


def show_update(outcome: Outcome, written: bool) -> None:
    """Print how the baseline has changed, figure by figure."""
    before = {} if outcome.check.baseline is None else outcome.check.baseline.by_key()
    after = outcome.now.by_key()
    say(*(f"+ {cell.name}" for key, cell in after.items() if key not in before))
    say(*(f"- {cell.name}" for key, cell in before.items() if key not in after))
    for row in _sorted(outcome.rows):
        _, _, _, then, now, difference, *_ = _cells(row)
        say(f"~ {row.cell.name}: {row.metric.title}: {then} -> {now}, {difference}")
    what = "written" if written else "up to date, nothing is written"
    say(f"{outcome.check.baseline_file}: {what}")


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a summary for a pull request: what differs, the worst first."""
    passed = all(outcome.passed for outcome in outcomes)
    lines = [f"## prefillsim regress: {'passed' if passed else 'failed'}", ""]
    for outcome in outcomes:
        lines += [f"**{_escaped(str(outcome.check.file))}**: {verdict_line(outcome)}.", ""]
        lines += [f"- does not fit: {_escaped(fault)}" for fault in outcome.faults]
        lines += [f"- failed: {_escaped(failure)}" for failure in outcome.failures]
        if outcome.faults or outcome.failures:
            lines.append("")
        if rows := _sorted(outcome.rows):
            lines += [f"| {' | '.join(COLUMNS)} |", "|---|---|---|--:|--:|--:|--:|---|"]
            lines += [f"| {' | '.join(map(_escaped, _cells(row)))} |" for row in rows]
            lines.append("")
    lines.append(
        "Means over seeds; differences have paired 95 % t-intervals over the same seeds, in percent of the baseline."
    )
    return "\n".join(lines) + "\n"


def junit(outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as JUnit XML: a test case for each figure that is judged, and one for the runs themselves."""
    root = ElementTree.Element("testsuites", name="prefillsim regress")
    for outcome in outcomes:
        name = str(outcome.check.file)
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(name))
        runs = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name="every run ends")
        if outcome.failures:
            _problem(runs, "error", outcome.failures[0], outcome.failures)
        fits = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name="the baseline fits the file")
        if outcome.faults:
            _problem(fits, "failure", outcome.faults[0], outcome.faults)
        for row in outcome.rows:
            if row.tolerance is None:
                continue
            title = f"{row.cell.name}: {row.metric.name}"
            case = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=_clean(title))
            if row.verdict == "worse":
                _, _, figure, then, now, difference, allowed, _ = _cells(row)
                sentence = f"{figure} was {then} and is {now}: {difference}, where {allowed} is allowed"
                _problem(case, "failure", sentence, [f"{row.cell.name}: {sentence}"])
        for count, tag in (("tests", "testcase"), ("failures", "testcase/failure"), ("errors", "testcase/error")):
            suite.set(count, str(len(suite.findall(tag))))
    ElementTree.indent(root, " ")
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _problem(case: ElementTree.Element, kind: str, message: str, lines: Sequence[str]) -> None:
    ElementTree.SubElement(case, kind, message=_clean(message)).text = _clean("\n".join(lines))


def _clean(text: str) -> str:
    return NOT_XML.sub("?", text)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that differ, the worst verdict first."""
    return sorted((row for row in rows if row.verdict != "unchanged"), key=lambda row: ORDER.index(row.verdict))


def _cells(row: Row) -> tuple[str, str, str, str, str, str, str, str]:
    allowed = "not judged" if row.tolerance is None else f"{row.tolerance:g} %"
    return (
        row.cell.policy,
        row.cell.where,
        row.metric.title,
        _digits(row.then),
        _digits(row.now),
        _difference(row),
        allowed,
        row.verdict,
    )


def _digits(value: float | None) -> str:
    """Return a value with the digits that a change of a thousandth takes to see."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.5g}"


def _difference(row: Row) -> str:
    mean, lo, hi = row.percent
    if mean is None:
        return "-" if row.difference.mean is None else f"{row.difference.mean:+.3g}"
    return f"{mean:+.2f} %" + ("" if lo is None or hi is None else f" ({lo:+.2f} to {hi:+.2f})")


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
