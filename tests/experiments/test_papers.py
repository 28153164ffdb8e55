"""The page of verdicts: everything in the papers is on it, and its words go where the tables go."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from experiments.findings.table import Table
from experiments.papers import entries as papers_entries
from experiments.papers import prefillonly as papers_prefillonly
from experiments.papers import prefillonly_claims as papers_prefillonly_claims
from experiments.papers import sloweave as papers_sloweave
from experiments.papers.entries import DOCS, HOLDS, IN_PART, NOT, VERDICTS, Entry, of_comparisons, of_numbers
from experiments.papers.page import papers_page

ALL = [
    *papers_sloweave.entries(),
    *papers_sloweave.claims(),
    *papers_prefillonly.entries(),
    *papers_prefillonly_claims.claims(),
]


def test_the_page_is_made_from_the_committed_tables() -> None:
    assert (DOCS / "papers.md").read_text() == papers_page(), "docs/papers.md is not what the tables say: run make docs"


def test_every_figure_and_every_table_of_both_papers_is_there_once() -> None:
    def numbered(entries: list[Entry], kind: str) -> list[int]:
        return [int(e.item.split()[1]) for e in entries if e.item.startswith(f"{kind} ")]

    assert numbered(papers_sloweave.entries(), "Figure") == [1, 2, 3, 4, 5]
    assert numbered(papers_sloweave.entries(), "Table") == [1, 2, 3, 4]
    assert numbered(papers_prefillonly.entries(), "Figure") == list(range(1, 12))
    assert numbered(papers_prefillonly.entries(), "Table") == [1, 2, 3]
    assert "Algorithm 1" in [e.item for e in papers_prefillonly.entries()]


@pytest.mark.parametrize("entry", ALL, ids=lambda e: e.item)
def test_an_entry_says_what_it_rests_on(entry: Entry) -> None:
    """A verdict on something that was made comes with a link to it; without a counterpart it says why."""
    assert entry.verdict in VERDICTS
    assert entry.shows
    assert entry.ours
    if entry.verdict in (HOLDS, IN_PART, NOT):
        assert re.search(r"\]\([\w./#-]+\)", entry.ours), entry.ours
    assert not re.search(r"\bNone\b|\bnan\b", f"{entry.shows} {entry.ours}")


def test_verdicts_are_counts() -> None:
    assert of_comparisons(24, 24) == HOLDS
    assert of_comparisons(23, 24) == of_comparisons(1, 24) == IN_PART
    assert of_comparisons(0, 24) == NOT
    assert of_numbers(58, 64) == HOLDS
    assert of_numbers(57, 64) == of_numbers(1, 64) == IN_PART
    assert of_numbers(0, 64) == of_comparisons(0, 0) == of_numbers(0, 0) == NOT


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Entry]]:
    """Return the entries as they are when a committed table is another."""

    def change(part: str, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Entry]:
        real = papers_entries.committed

        def other(p: str, n: str) -> Table:
            table = real(p, n)
            return Table([{**row, **edit(row)} for row in table]) if (p, n) == (part, name) else table

        modules = (papers_sloweave, papers_prefillonly, papers_prefillonly_claims)
        for module in modules:
            monkeypatch.setattr(module, "committed", other)
        papers = {"S": papers_sloweave, "P": papers_prefillonly, "p": papers_prefillonly_claims}
        made = {f"{key} {e.item}": e for key, m in papers.items() if hasattr(m, "entries") for e in m.entries()}
        return made | {f"{key} {e.item}": e for key, m in papers.items() if hasattr(m, "claims") for e in m.claims()}

    return change


def test_numbers_that_differ_do_not_hold(changed: Callable[..., dict[str, Entry]]) -> None:
    made = changed("sloweave", "reproduction", lambda row: {"verdict": "differs"})
    assert made["S Table 3"].verdict == made["S Table 4"].verdict == made["S Figure 4"].verdict == NOT
    assert made["S Table 3"].ours.startswith("20 seeds: 0 of 64 agree")


def test_an_order_that_holds_everywhere_holds(changed: Callable[..., dict[str, Entry]]) -> None:
    made = changed("sloweave-gpu", "order", lambda row: {"verdict": "holds"})
    assert made["S Figure 3"].verdict == made["S Table 2"].verdict == made["S §5, energy"].verdict == HOLDS
    made = changed("sloweave-gpu", "order", lambda row: {"verdict": "reversed"})
    assert made["S Figure 3"].verdict == made["S Table 2"].verdict == made["S §5, energy"].verdict == NOT
    assert "more goodput than SLOWeave in 6 of 6" in made["S Table 2"].ours


def test_a_late_step_of_sloweave_is_seen(changed: Callable[..., dict[str, Entry]]) -> None:
    made = changed("sloweave", "figure2", lambda row: {"late": row["policy"] == "SLOWeave"})
    assert made["S Figure 2"].verdict == NOT


def test_ratios_go_where_they_lie(changed: Callable[..., dict[str, Entry]]) -> None:
    for verdict, told in (("within", HOLDS), ("above", NOT)):
        made = changed("prefillonly", "ratios", lambda row, v=verdict: {"verdict": v})
        for item in ("P Figure 6", "P Figure 7", "p 1.4 to 4.0 times the QPS"):
            assert made[item].verdict == told
            assert verdict in made[item].ours


def test_lengths_of_table_2_are_read(changed: Callable[..., dict[str, Entry]]) -> None:
    made = changed("prefillonly", "table2", lambda row: {"ours": row["paper"], "within": True})
    assert "15 of 15 within 20 %" in made["P Table 2"].ours
    assert made["p up to 5 times the maximum input length"].verdict == HOLDS
    made = changed("prefillonly", "table2", lambda row: {"ours": 2 * row["paper"] if row["system"] != "paged" else 1})
    assert made["p chunked prefill takes less than twice the length"].verdict == NOT


def test_figure_11_counts_its_steps(changed: Callable[..., dict[str, Entry]]) -> None:
    sign = {"p99_s": -1, "mean_s": 1, "p50_s": 1}
    made = changed("prefillonly", "figure11-paired", lambda r: {"difference": sign[r["metric"]], "significant": True})
    assert made["P Figure 11"].verdict == HOLDS
    made = changed("prefillonly", "figure11-paired", lambda r: {"significant": False})
    assert made["P Figure 11"].verdict == NOT
