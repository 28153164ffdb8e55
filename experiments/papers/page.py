"""``docs/papers.md``: every figure and table of both papers, and what their texts claim, each with ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.documents_text import filled, table
from experiments.papers import prefillonly, prefillonly_claims, sloweave
from experiments.papers.entries import VERDICTS, Entry

HEAD = """\
Every figure and every table of both papers, and the claims of their texts that are about a number or an order: what the
paper shows, what ours is, and whether it holds. Numbers in brackets are the paper's. Every number of ours is computed
from the committed tables that are linked, which `prefillsim figures all` makes again; `prefillsim figures all --check`,
or `make figures`, holds what it makes against them. The paper's numbers, where it has only pictures, are readings.
"""

AGREES = """\
A number agrees as its own table says: SLOWeave's where it lies in the 95 % interval of a mean of five seeds that vary
like ours, PrefillOnly's where our 95 % interval comes within 20 % of it. Comparisons are paired on equal seeds.
"""


def papers_page() -> str:
    """Return the page.

    Raises:
        OSError: if a committed table is not there.
    """
    sections = (
        ("SLOWeave", "arXiv 2609.07883v1", sloweave.entries(), sloweave.claims()),
        ("PrefillOnly", "arXiv 2505.07203v1", prefillonly.entries(), prefillonly_claims.claims()),
    )
    everything = [entry for _, _, shown, told in sections for entry in (*shown, *told)]
    lines = ["# The papers, figure by figure", "", filled(HEAD), "", filled(AGREES), "", _legend(everything), ""]
    for name, source, shown, told in sections:
        lines += [f"## {name}", "", f"{source}. {_counted([*shown, *told])}", ""]
        lines += [f"### {name}: figures and tables", "", _table(shown), ""]
        lines += [f"### {name}: what the text claims", "", _table(told), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(entries: Sequence[Entry]) -> str:
    return table(
        ["", "the paper shows", "ours", "verdict"],
        [[f"**{entry.item}**", entry.shows, entry.ours, f"**{entry.verdict}**"] for entry in entries],
    )


def _legend(entries: Sequence[Entry]) -> str:
    count = Counter(entry.verdict for entry in entries)
    return table(["verdict", "meaning", "entries"], [[v, meaning, str(count[v])] for v, meaning in VERDICTS.items()])


def _counted(entries: Sequence[Entry]) -> str:
    count = Counter(entry.verdict for entry in entries)
    return f"{len(entries)} entries: " + ", ".join(f"{v} {count[v]}" for v in VERDICTS if count[v]) + "."
