"""Small sweeps for the tests of everything that can happen to one."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from experiments.axes import Experiment, plan
from experiments.draft import Draft

VALUES: dict[str, Any] = {
    "trace.workload": "mixed",
    "trace.limit": 30,
    "policies": ["fcfs+full", "sloweave"],
    "seeds": 2,
    "slo": "ttft:1000,tpot_p99:25",
}

KILLER = """
import os, signal
from pathlib import Path
from policies import Chunking, Grant, register

class Killer(Chunking):
    def grant(self, batch):
        if self.wants():
            os.kill(os.getpid(), signal.SIGKILL)
        return Grant(batch.candidates[0].remaining)

@register
class Always(Killer):
    "Kills every process that runs it."
    name = "{name}-always"

    def wants(self):
        return True

@register
class Once(Killer):
    "Kills the first process that runs it."
    name = "{name}-once"

    def wants(self):
        try:
            Path("{mark}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
"""

WAITING = """
import time
from pathlib import Path
from policies import Chunking, Grant, register

@register
class Waiting(Chunking):
    "Waits for a file."
    name = "waiting"

    def grant(self, batch):
        Path("{here}").touch()
        while not Path("{go}").exists():
            time.sleep(0.01)
        return Grant(batch.candidates[0].remaining)
"""


def planned(values: dict[str, Any] | None = None, **axes: Any) -> Experiment:
    draft = Draft()
    for key, value in {**VALUES, **(values or {})}.items():
        draft.put(key, value, "test")
    draft.put("sweep", axes, "test.toml")
    return plan(draft)


def toml(path: Path, values: dict[str, Any] | None = None, **axes: Any) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**VALUES, **(values or {})}.items()]
    path.write_text(
        "\n".join([*lines, "[sweep]", *(f"{key} = {json.dumps(value)}" for key, value in axes.items()), ""])
    )
    return path


def command(config: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "experiments.cli", "sweep", str(config), "--out", str(out), *options]


def tables(out: Path) -> dict[str, str]:
    """The hashes of all tables and summaries, by name."""
    files = sorted(
        path for path in out.rglob("*") if path.suffix in (".parquet", ".csv") or path.name == "summary.json"
    )
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
