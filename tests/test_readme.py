"""What the README shows is what the repository has."""

import re
from pathlib import Path

import typer.main

from experiments.cli import make_app
from policies import ALIASES
from policies.registry import KINDS, parts

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_policy_shown_is_the_example_file() -> None:
    """Word for word, so that it is what the tests of plug-ins run."""
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown in (ROOT / "examples" / "my_policy.py").read_text()


def test_every_part_and_alias_is_listed() -> None:
    table = README[README.index("| part | names |") :].split("\n\n")[0]
    for kind in KINDS:
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {kind} ")]
        shipped = {name for name, part in parts(kind).items() if part.__module__.startswith("policies.")}
        assert set(re.findall(r"`([^`]+)`", row)) == shipped
    (row,) = [line for line in table.splitlines() if line.startswith("| alias ")]
    assert set(re.findall(r"`([^`]+)`", row)) == set(ALIASES)


def test_the_commands_shown_exist() -> None:
    known = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    shown = set(re.findall(r"^    prefillsim ([\w-]+)|^\| `prefillsim ([\w-]+)", README, re.MULTILINE))
    assert {first or second for first, second in shown} == set(known)
