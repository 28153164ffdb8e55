"""``python -m tests.mutation``: puts small mistakes into the code, one at a time, and sees whether a test notices."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.mutation.catalogue import MUTANTS
from tests.mutation.results import RESULTS, in_turn, read, write
from tests.mutation.run import KILLED, run


def main() -> int:
    """Run; 1 where a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose file and line, or what they break, contain this")
    parser.add_argument("--resume", action="store_true", help="leave out those that the file of verdicts has as killed")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without mistakes first")
    parser.add_argument("--verdicts", type=Path, default=RESULTS, help="the file of verdicts, written after each one")
    given = parser.parse_args()
    rows = read(given.verdicts)
    chosen = [m for m in MUTANTS if given.only in m.name or given.only in m.breaks or given.only in m.group]
    if given.resume:
        chosen = [m for m in chosen if m not in rows or rows[m]["outcome"] != KILLED]
    begin = time.perf_counter()
    killed = 0
    for mutant, outcome, by, seconds, output in run(in_turn(chosen), given.jobs, baseline=not given.trust):
        rows[mutant] = {"outcome": outcome, "by": by}
        write(given.verdicts, rows)
        told = f" by {by}" if by else ""
        print(f"{outcome:8} {mutant.name}: {mutant.breaks}{told} ({seconds:.1f} s)", flush=True)
        if outcome == KILLED:
            killed += 1
        else:
            print(output)
    print(f"{killed} of {len(chosen)} mutants killed in {time.perf_counter() - begin:.0f} s")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
