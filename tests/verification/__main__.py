"""``python -m tests.verification``: runs the tests of the verification plan and writes ``docs/verification.md``."""

from __future__ import annotations

import sys

from tests.verification.chapter import CHAPTER, chapter
from tests.verification.results import checks, of, run


def main() -> int:
    """Run; 1 where a check failed."""
    results, measured = run(sys.argv[1:])
    CHAPTER.write_text(chapter(results, measured), encoding="utf-8")
    failed = [check.name for check in checks() if of(check, results).failed]
    print(f"{CHAPTER}: {', '.join(failed)} failed" if failed else f"{CHAPTER}: all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
