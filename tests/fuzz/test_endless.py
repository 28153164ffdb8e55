"""Files that never end, of every kind that a user names, are one sentence long before they fill the memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDLESS = "/dev/zero"

KIBIBYTES = 4 << 20
"""Of addresses, not of memory: libraries reserve many."""

TOML = """policies = ["fcfs+full"]
seeds = 1
[trace]
workload = "mixed"
limit = 5
"""

COMMANDS = {
    "configuration": f"sweep {ENDLESS}",
    "runs to hold against a baseline": f"regress {ENDLESS}",
    "baseline": f"regress good.toml --baseline {ENDLESS}",
    "cost model": f"costmodel show {ENDLESS}",
    "profile": f"calibrate {ENDLESS} -o m.json",
    "plug-in": f"sweep good.toml --plugin {ENDLESS}",
    "trace": f"trace info {ENDLESS}",
    "run.json": "report run",
}


@pytest.mark.skipif(not Path(ENDLESS).exists(), reason=f"needs {ENDLESS}")
@pytest.mark.parametrize("what", COMMANDS)
def test_a_file_that_never_ends_is_one_sentence(what: str, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(TOML)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").symlink_to(ENDLESS)
    command = f"ulimit -v {KIBIBYTES}; exec {sys.executable} -m experiments.cli {COMMANDS[what]}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert any(words in done.stderr for words in ("more than", "is a device", "has no run.json")), done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good.toml", "run"]
