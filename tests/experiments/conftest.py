"""The command as a function: exit status, stdout and stderr, in a working directory of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from tests.experiments.drawing import draw_lightly, leave_undrawn


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> Result:
        monkeypatch.setattr("sys.argv", ["prefillsim", *arguments])
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all else in a small comparison."""
    monkeypatch.setattr("experiments.figure.write_figure", lambda comparison, folder: [])


@pytest.fixture
def light_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are laid out and drawn, but without dots and only one of each kind."""
    draw_lightly(monkeypatch)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than their numbers."""
    leave_undrawn(monkeypatch)
