"""``python -m tests.fuzz``: fuzzing guided by coverage (atheris), each target for some seconds.

What it found and kept of earlier runs is in ``build/fuzz``; an input that fails is written there, and its path printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]

MEGABYTES = 1024

READERS = ("experiments.config", "experiments.draft", "experiments.toml", "sim.objectives")
"""Modules that read outsiders' input, besides the folders of the lower floors."""


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    from tests.fuzz.targets import outcome

    with atheris.instrument_imports(include=["traces", "costmodels", "policies", *READERS]):
        for module in [m for m in sys.modules if m.partition(".")[0] in ("traces", "costmodels", "policies")]:
            del sys.modules[module]
        for module in (*READERS, "tests.fuzz.targets"):
            sys.modules.pop(module, None)
        from tests.fuzz.targets import outcome
    scratch = corpus.parent / "scratch"
    scratch.mkdir(exist_ok=True)

    def one(data: bytes) -> None:
        outcome(name, data, scratch)

    options = [f"-max_total_time={seconds}", "-timeout=10", f"-rss_limit_mb={MEGABYTES}", "-max_len=100000"]
    options += [f"-artifact_prefix={corpus.parent}/fail-{name}-", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz all targets in turn; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    build = ROOT / "build" / "fuzz"
    if given.here:
        fuzz(given.only, given.seconds, build / given.only)
        return 0
    from tests.fuzz.seeds import SEEDS

    failed = []
    for name in [given.only] if given.only else sorted(TARGETS):
        corpus = build / name
        corpus.mkdir(parents=True, exist_ok=True)
        for k, seed in enumerate(SEEDS[name]):
            (corpus / f"seed-{k}").write_bytes(seed)
        command = [sys.executable, "-m", "tests.fuzz", "--here", "--only", name, "--seconds", str(given.seconds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
        runs = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        count = runs[-1].split()[-1] if runs else "no"
        print(
            f"{name}: {count} inputs in {given.seconds} s, {'failed' if done.returncode else 'nothing found'}",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
            print((done.stdout + done.stderr)[-3000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
