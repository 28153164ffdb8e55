"""The verification chapter as Markdown, with nothing in it that was not measured."""

from __future__ import annotations

import json
import platform
from collections import Counter
from datetime import date
from typing import Any

from sim.provenance import provenance
from tests.mutation import results as mutation
from tests.mutation.catalogue import MUTANTS
from tests.mutation.mutant import GROUPS as DESIGNED
from tests.mutation.mutant import ROOT
from tests.mutation.run import KILLED
from tests.verification.checks import GROUPS, THEORY, Check
from tests.verification.results import Result, of

CHAPTER = ROOT / "docs" / "verification.md"
CROSS_CHECK = ROOT / "docs" / "cross-check.json"

HEAD = """# Verification

How the simulator is known to do what it says. `make verification` runs every test named here and writes this page; no
number on it was typed. The tests are part of `make test`, those below `oracle/` of `make oracle`, where the real vLLM
is installed; the mutants are run by `make mutants`, and the coverage-guided fuzzer by `make fuzz`. How well simulated
times agree with a GPU's is another question, answered in [validation](validation.md).
"""

ABOUT = {
    "Theory": "Queues with a known answer: one prefill per step at a fixed price per token makes the engine a "
    "single-server queue. Means over seeds must lie within simultaneous 99 % intervals of theory, and a second engine, "
    "3 % slower, must fall outside; T9 to T12 hold exactly.",
    "Policies: metamorphic and exact": "What a policy must do whatever the workload, on random ones.",
    "Invariants": "What holds in every step of every random run.",
    "Differential": "Two programs that were written apart must agree, step by step or bit by bit.",
    "Statistics": "What turns runs into conclusions.",
    "Fuzzing": "What outsiders hand in: traces, configurations, policy strings, cost models.",
}


def chapter(results: dict[str, Result], measured: list[dict[str, Any]]) -> str:
    """Return the page."""
    parts = [HEAD, _made()]
    for title, checks in GROUPS.items():
        parts += [f"## {title}", ABOUT[title], _table(checks, results)]
        if checks is THEORY:
            parts.append(_theory(measured))
        if title == "Differential":
            parts.append(_cross_check())
    parts.append(_mutants())
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _made() -> str:
    origin = provenance()
    git = origin["git"]
    changed = " with changes" if git["dirty"] else ""
    packages = ", ".join(f"{name} {version}" for name, version in origin["packages"].items() if version)
    return (
        f"Made {date.today().isoformat()} from revision {str(git['revision'])[:12]}{changed}, "
        f"Python {platform.python_version()}, {packages}."
    )


def _table(checks: tuple[Check, ...], results: dict[str, Result]) -> str:
    lines = ["| | holds | test | cases | result |", "|---|---|---|--:|---|"]
    for check in checks:
        total = of(check, results)
        tests = "<br>".join(f"`{test}`" for test in check.tests)
        cases = f"{total.passed}" + (f" (+{total.skipped} not run)" if total.skipped else "")
        lines.append(f"| {check.name} | {check.holds} | {tests} | {cases} | {total.word} |")
    files = sorted({test.partition("::")[0] for check in checks for test in check.tests})
    command = "python -m pytest " + " ".join(f"tests/{file}" for file in files)
    return "\n".join(lines) + f"\n\n`{command}`"


def _theory(measured: list[dict[str, Any]]) -> str:
    """Return what was compared with formulas, one line per quantity."""
    names: dict[str, list[str]] = {}
    for check in THEORY:
        for test in check.tests:
            names.setdefault(f"tests/{test}", []).append(check.name)
    lines = ["| | theory | simulated | ± | seeds | customers each |", "|---|--:|--:|--:|--:|--:|"]
    for row in measured:
        which = ", ".join(names.get(row["test"].partition("[")[0], []))
        lines.append(
            f"| {which} | {row['theory']:.5g} | {row['mean']:.5g} | {row['half']:.2g} | {row['seeds']} | "
            f"{row['customers']:,} |"
        )
    return "Every quantity that is compared with a formula, in units of the mean service time:\n\n" + "\n".join(lines)


def _cross_check() -> str:
    runs = json.loads(CROSS_CHECK.read_text(encoding="utf-8"))["runs"].values()
    steps, identical = sum(r["steps"] for r in runs), sum(r["identical_steps"] for r in runs)
    preempted = sum(r["preemptions"] for r in runs)
    vllm = json.loads(CROSS_CHECK.read_text(encoding="utf-8"))["provenance"]["vllm"]
    return (
        f"D1 at length (`make oracle-full`, [cross-check.json](cross-check.json)): {len(runs)} runs beside the "
        f"scheduler of vLLM {vllm}, {identical:,} of {steps:,} steps identical, {preempted:,} preemptions."
    )


def _mutants() -> str:
    rows = mutation.read(mutation.RESULTS)
    killed = [m for m in MUTANTS if m in rows and rows[m]["outcome"] == KILLED]
    survived = [m for m in MUTANTS if m in rows and rows[m]["outcome"] != KILLED]
    not_run = len(MUTANTS) - len(killed) - len(survived)
    score = f"{len(killed)} of {len(MUTANTS)} killed, {len(survived)} survived"
    lines = [
        "## Mutants",
        f"Small mistakes put into the code one at a time: {score}, {not_run} not run yet. `make mutants`",
    ]
    lines += ["", "| the plan's list | mutants | killed | for example by |", "|---|--:|--:|---|"]
    for group in DESIGNED:
        own = [m for m in MUTANTS if m.group == group]
        dead = [m for m in own if m in killed]
        by = f"`{rows[dead[0]]['by'].partition('[')[0].removeprefix('tests/')}`" if dead else ""
        lines.append(f"| {group} | {len(own)} | {len(dead)} | {by} |")
    lines += ["", "| file | mutants | killed |", "|---|--:|--:|"]
    total, dead_in = Counter(m.file for m in MUTANTS), Counter(m.file for m in killed)
    lines += [f"| {file} | {total[file]} | {dead_in[file]} |" for file in sorted(total)]
    lines += [f"\nSurvived: {m.name}: {m.breaks}." for m in survived]
    return "\n".join(lines)
