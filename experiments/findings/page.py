"""``docs/findings.md``: every question with its answer, made from the tables of its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from experiments.documents_text import anchor, filled
from experiments.findings.question import Question
from experiments.findings.table import Table

HEAD = """\
Questions that neither paper answers, asked by simulation. Every number here is computed from `findings/NAME-runs.csv`,
one row per run, which `prefillsim figures findings` makes again; a test fails where a sentence and its runs differ.
Intervals are 95 % t-intervals over seeds; differences are paired on the same seeds, and "told apart" means that the
interval excludes zero. Policies believe the cost model that is charged, unless a paragraph says otherwise.
"""


def page(answered: Mapping[str, Table], asked: Sequence[Question]) -> str:
    """Return the page of the questions whose tables are given, by name."""
    shown = [question for question in asked if question.name in answered]
    contents = "\n".join(f"{i}. [{q.asks}](#{anchor(q.asks)})" for i, q in enumerate(shown, 1))
    return (
        "\n".join(["# Findings", "", HEAD, contents, "", *(_section(q, answered[q.name]) for q in shown)]).rstrip("\n")
        + "\n"
    )


def _section(question: Question, table: Table) -> str:
    files = ", ".join(f"[{p.name}](../experiments/findings/questions/{p.name})" for p in question.files)
    return "\n".join(
        [
            f"## {question.asks}",
            "",
            reflowed(question.answer(table)),
            "",
            f"![{question.asks}](findings/{question.name}.png)",
            "",
            f"*{len(table):,} runs: {files}. Numbers: [{question.name}.csv](findings/{question.name}.csv). "
            f"Made by `prefillsim figures findings {question.name}`.*",
            "",
        ]
    )


def reflowed(text: str) -> str:
    """Return paragraphs wrapped anew, so that numbers of any length leave no ragged lines; lists and tables stay."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(b if b.startswith(("|", "- ")) else filled(" ".join(b.split())) for b in blocks)
