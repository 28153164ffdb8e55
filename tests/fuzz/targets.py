"""What outsiders' input goes through, each as a function of bytes that ends well or with one sentence."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from costmodels.base import CostModel, CostModelError
from costmodels.calibrated import RangeWarning
from costmodels.io import load_cost_model
from experiments.config import Config, ConfigError
from experiments.draft import Draft
from policies.base import PolicyError
from policies.spec import PolicySpec
from sim.objectives import ObjectiveError, Objectives
from traces.io import read_trace, scan_trace
from traces.lint import lint_trace
from traces.schema import TraceError

REFUSALS = (ConfigError, CostModelError, ObjectiveError, PolicyError, TraceError)
"""What the command line turns into one sentence and exit status 2."""

LONGEST = 10_000
"""Characters of a sentence that somebody may still read."""

Target = Callable[[bytes, Path], None]


def trace(data: bytes, folder: Path) -> None:
    """Read a trace, and check it as ``trace lint`` does: both begin with the same scan."""
    path = _file(data, folder, "trace")
    scan = scan_trace(path)
    with patch("traces.lint.scan_trace", return_value=scan), patch("traces.io.scan_trace", return_value=scan):
        lint_trace(path)
        read_trace(path)


def toml(data: bytes, folder: Path) -> None:
    """Read a configuration."""
    draft = Draft()
    draft.put_file(_file(data, folder, "experiment.toml"))
    draft.take_axes()
    _use(draft.finish())


def setting(data: bytes, folder: Path) -> None:
    """Read what ``--set`` is given."""
    draft = Draft()
    draft.put_set(data.decode(errors="replace"))
    draft.take_axes()
    _use(draft.finish())


def _use(config: Config) -> None:
    """Do what every run does first: write the configuration as JSON."""
    assert isinstance(json.loads(config.model_dump_json()), dict)


def policy(data: bytes, folder: Path) -> None:
    """Build a policy from its string, and again from its JSON."""
    spec = PolicySpec.parse(data.decode(errors="replace"))
    spec.build()
    assert str(PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict())))) == str(spec)


def stored_policy(data: bytes, folder: Path) -> None:
    """Build a policy from JSON that anybody may have written."""
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return
    PolicySpec.from_dict(stored).build()


def slo(data: bytes, folder: Path) -> None:
    """Read objectives."""
    goals = Objectives.parse(data.decode(errors="replace"))
    assert Objectives.parse(str(goals)) == goals


def cost_model(data: bytes, folder: Path) -> None:
    """Read a cost model, and ask it all that an engine asks."""
    model = load_cost_model(str(_file(data, folder, "model.json")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RangeWarning)  # of steps beyond those that it was fitted to
        _ask(model)


def _ask(model: CostModel) -> None:
    for n, context, longest, prefills, tokens, before in (
        (1, 1, 1, 0, 0, 0),
        (0, 0, 0, 1, 1, 0),
        (4, 4_000, 2_000, 1, 512, 100),
        (64, 1 << 20, 1 << 17, 4, 8_192, 1 << 17),
    ):
        took = model.step_ns(n, context, longest, prefills, tokens, tokens * before + tokens * (tokens + 1) // 2)
        assert type(took) is int
        assert took >= 1
    for budget in (0, 10**6, 10**9):
        assert 0 <= model.max_chunk(4, 4_000, 2_000, 0, 4_096, budget) <= 4_096
    run = model.decode_run_ns(4, 4_000, 2_000, 5)
    assert run.tolist() == [model.step_ns(4, 4_000 + 4 * j, 2_000 + j, 0, 0, 0) for j in range(5)]


TARGETS: dict[str, Target] = {
    "trace": trace,
    "toml": toml,
    "set": setting,
    "policy": policy,
    "stored-policy": stored_policy,
    "slo": slo,
    "cost-model": cost_model,
}


def _file(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def outcome(name: str, data: bytes, folder: Path | None = None) -> str:
    """Run a target and return the sentence of its refusal, nothing where it took the input.

    Raises:
        Exception: whatever else comes out of it; that is what fuzzing looks for.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return outcome(name, data, Path(made))
    try:
        TARGETS[name](data, folder)
    except REFUSALS as e:
        sentence = str(e)
        assert sentence.strip()
        assert len(sentence) <= LONGEST, f"a sentence of {len(sentence)} characters: {sentence[:200]}"
        return sentence
    return ""
