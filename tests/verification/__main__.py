"""``python -m tests.verification``: runs the tests of the verification plan and writes ``docs/verification.md``."""

from __future__ import annotations

import sys

from tests.verification.chapter import CHAPTER, chapter
from tests.verification.results import ORACLE, checks, of, run

NEED_VLLM = {check.name for check in checks() if all(test.startswith(ORACLE) for test in check.tests)}


def main() -> int:
    """Run; 1 where a check failed."""
    results, measured = run(sys.argv[1:])
    CHAPTER.write_text(chapter(results, measured), encoding="utf-8")
    found = {check.name: of(check, results) for check in checks()}
    failed = [name for name, result in found.items() if result.failed or not (result.passed or name in NEED_VLLM)]
    print(f"{CHAPTER}: {', '.join(failed)} failed or did not run" if failed else f"{CHAPTER}: all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
