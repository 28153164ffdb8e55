"""The reference of the command line, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main

from experiments.cli import make_app
from experiments.documents_text import DASH, anchor, as_markdown, code, table

SHARED = 4
"""Commands that an option must be the same in to be described once."""

HEAD = """# Commands

Made from the code by `make docs`; a test fails where the two differ.

Every command takes `--help`, and `--json` for one document on stdout and nothing else there. Exit status 0: done.
1: a run failed, or a check found something. 2: the input cannot be used or the output cannot be written, with one
sentence on stderr. 130: interrupted. `prefillsim --version` prints the version."""

SHARED_HEAD = f"""## Shared options

Those that at least {SHARED} commands have with the same meaning. With each command stands which it takes."""


@dataclass(frozen=True)
class Described:
    """An option or argument as the reference shows it."""

    names: str
    """``--policy, -p``, or an argument's name."""
    value: str
    """What it takes, with its bounds; empty for a switch."""
    default: str
    help: str
    panel: str
    is_argument: bool
    repeats: bool

    @property
    def first(self) -> str:
        """The first of its names."""
        return re.split("[,/]", self.names)[0]


@dataclass(frozen=True)
class Command:
    """A command with its full name and all it takes, hidden options left out."""

    name: str
    help: str
    takes: tuple[Described, ...]

    @property
    def usage(self) -> str:
        """The command line in short."""
        arguments = [a.names for a in self.takes if a.is_argument]
        return " ".join(["prefillsim", self.name, *arguments, "[OPTIONS]"])


def commands_page() -> str:
    """Return the page."""
    found = list(_commands(typer.main.get_command(make_app()), ""))
    shared = _shared(found)
    panels = list(dict.fromkeys(option.panel for option in shared))
    overview = [
        [f"[{code(f'prefillsim {c.name}')}](#{anchor(f'prefillsim {c.name}')})", _summary(c.help)] for c in found
    ]
    parts = [HEAD, table(["command", "what it does"], overview), SHARED_HEAD]
    for panel in panels:
        parts += [f"### {panel}", _options([o for o in shared if o.panel == panel])]
    for command in found:
        parts += [f"## `prefillsim {command.name}`", as_markdown(command.help), f"    {command.usage}"]
        own = [o for o in command.takes if o not in shared]
        if own:
            parts.append(_options(own))
        told = []
        for panel in panels:
            names = [code(o.first) for o in command.takes if o in shared and o.panel == panel]
            if names:
                told.append(f"*{panel}* {', '.join(names)}")
        if told:
            parts.append(f"[Shared options](#shared-options): {'; '.join(told)}.")
    return "\n\n".join(parts) + "\n"


def _shared(commands: Sequence[Command]) -> list[Described]:
    """Return the options of at least ``SHARED`` commands; of two with one name, that of more commands."""
    often = Counter(option for command in commands for option in command.takes if not option.is_argument)
    by_name: dict[str, Described] = {}
    for option, count in often.most_common():
        if count >= SHARED:
            by_name.setdefault(option.first, option)
    return [option for option in often if option in by_name.values()]


def _summary(text: str) -> str:
    return as_markdown(text).partition("\n")[0]


def _options(options: list[Described]) -> str:
    rows = [
        [
            f"{code(o.names)}{' ' + code(o.value) if o.value and not o.is_argument else ''}"
            f"{', may be repeated' if o.repeats and not o.is_argument else ''}",
            o.default,
            o.help,
        ]
        for o in options
    ]
    return table(["option", "default", "what it means"], rows)


def _commands(command: Any, name: str) -> list[Command]:
    """Return a command, or those of a group, in the order in which ``--help`` lists them."""
    if hasattr(command, "commands"):
        return [c for key, sub in command.commands.items() for c in _commands(sub, f"{name} {key}".strip())]
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    takes = [_described(p, hints.get(p.name)) for p in command.params if not getattr(p, "hidden", False)]
    return [Command(name, inspect.cleandoc(command.help or ""), tuple(t for t in takes if t.names != "--help"))]


def _described(parameter: Any, hint: Any) -> Described:
    annotation, *metadata = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    info = next((m for m in metadata if hasattr(m, "param_decls")), None)
    is_argument = not parameter.opts[0].startswith("-")
    plain = [a for a in get_args(annotation) if a is not type(None)] or [annotation]
    repeats = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
    names = ", ".join(parameter.opts)
    if parameter.secondary_opts:
        names += "/" + ", ".join(parameter.secondary_opts)
    value = getattr(info, "metavar", None) or parameter.metavar or ""
    if not value and plain != [bool]:
        value = _kind(plain[0])
    if is_argument:
        shown = (value or parameter.name.upper()).strip("[]").removesuffix("...") + ("..." if repeats else "")
        names = shown if parameter.required else f"[{shown}]"
    return Described(
        names,
        value if "|" in value else value + _bounds(info),
        _default(parameter),
        as_markdown(" ".join((parameter.help or "").split())),
        getattr(parameter, "rich_help_panel", None) or "Options",
        is_argument,
        repeats,
    )


def _kind(annotation: Any) -> str:
    return {int: "N", float: "X", Path: "PATH"}.get(annotation, "TEXT")


def _bounds(info: Any) -> str:
    low, high = getattr(info, "min", None), getattr(info, "max", None)
    if low is None and high is None:
        return ""
    return f" {low}…{high}" if None not in (low, high) else f" ≥ {low:g}" if high is None else f" ≤ {high:g}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "must be given"
    value = parameter.default
    if value is None or value is False or value in ("", (), []):
        return DASH
    if value is True:
        return "on"
    return code(f"{value:g}" if isinstance(value, float) else str(value))
