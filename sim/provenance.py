"""Where a result comes from: code, packages, machine and cost model."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from costmodels.base import CostModel

PACKAGES = ("prefillsim", "numpy", "scipy", "simpy", "pandas", "pyarrow", "scikit-learn")

ROOT = Path(__file__).resolve().parent.parent


def provenance() -> dict[str, Any]:
    """Return by what code and where results are made, for ``run.json``; never fails.

    Keys: ``git`` (``revision``, and ``dirty``: whether tracked files differ from it; both ``None`` where the code does
    not lie in its repository), ``packages`` (versions, ``None`` where absent), ``python`` and ``platform``.
    """
    revision, dirty = _git(ROOT)
    return {
        "git": {"revision": revision, "dirty": dirty},
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def cost_model_hash(cost: CostModel) -> str:
    """Return a hash of a cost model's JSON form, equal across machines."""
    return hashlib.sha256(json.dumps(cost.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _git(root: Path) -> tuple[str | None, bool | None]:
    """Return the revision and whether tracked files differ; asked once per process, as the code is read once."""

    def git(*arguments: str) -> str:
        # Without optional locks a status never gets in the way of the user's own git commands.
        command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # An installed copy may lie inside somebody else's repository, whose revision would say nothing.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None, None
