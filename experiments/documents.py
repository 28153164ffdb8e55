"""``python -m experiments.documents``: the pages of ``docs`` that are made from the code."""

from __future__ import annotations

from pathlib import Path

from experiments.documents_commands import commands_page
from experiments.documents_policies import policies_page
from experiments.findings.catalogue import questions
from experiments.findings.page import page
from experiments.findings.runs import stored
from experiments.papers.page import papers_page
from sim.store import atomic_write

FOLDER = Path(__file__).resolve().parents[1] / "docs"


def pages() -> dict[str, str]:
    """Return the text of every page by the name of its file; equal code and tables make equal bytes."""
    findings = page({q.name: stored(q, FOLDER / "findings") for q in questions()}, questions())
    return {
        "policies.md": policies_page(),
        "cli.md": commands_page(),
        "papers.md": papers_page(),
        "findings.md": findings,
    }


def main() -> None:
    """Write all pages, and say which have changed."""
    for name, text in pages().items():
        path = FOLDER / name
        if path.exists() and path.read_text() == text:
            continue
        atomic_write(path, text.encode())
        print(f"written: {path.relative_to(FOLDER.parent)}")


if __name__ == "__main__":
    main()
