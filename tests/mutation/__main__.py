"""``python -m tests.mutation``: puts small mistakes into the code, one at a time, and sees whether a test notices."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.mutation.catalogue import MUTANTS
from tests.mutation.mutant import ROOT
from tests.mutation.run import KILLED, Verdict, run

RESULTS = ROOT / "docs" / "mutants.json"


def document(verdicts: list[Verdict], seconds: float) -> dict[str, object]:
    """Return the verdicts as JSON, in the order of the list."""
    order = {mutant: k for k, mutant in enumerate(MUTANTS)}
    rows = [
        {
            "file": v.mutant.file,
            "old": v.mutant.old,
            "new": v.mutant.new,
            "breaks": v.mutant.breaks,
            "group": v.mutant.group,
            "outcome": v.outcome,
            "by": v.by,
        }
        for v in sorted(verdicts, key=lambda v: order[v.mutant])
    ]
    return {"seconds": round(seconds), "mutants": rows}


def main() -> int:
    """Run; 1 where a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose file and line, or what they break, contain this")
    parser.add_argument("--output", action="store_true", help="print what pytest said of those that survived")
    parser.add_argument(
        "--write", type=Path, help=f"write the verdicts as JSON; for all mutants {RESULTS.name} in docs"
    )
    parser.add_argument("--trust", action="store_true", help="do not run the tests without mistakes first")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if given.only in m.name or given.only in m.breaks or given.only in m.group]
    begin = time.perf_counter()
    verdicts = []
    for verdict in run(chosen, given.jobs, baseline=not given.trust):
        verdicts.append(verdict)
        by = f" by {verdict.by}" if verdict.by else ""
        print(
            f"{verdict.outcome:8} {verdict.mutant.name}: {verdict.mutant.breaks}{by} ({verdict.seconds:.1f} s)",
            flush=True,
        )
        if given.output and verdict.outcome != KILLED:
            print(verdict.output)
    killed = sum(v.outcome == KILLED for v in verdicts)
    seconds = time.perf_counter() - begin
    print(f"{killed} of {len(verdicts)} mutants killed ({killed / max(len(verdicts), 1):.1%}) in {seconds:.0f} s")
    if given.write is not None:
        given.write.write_text(
            json.dumps(document(verdicts, seconds), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
