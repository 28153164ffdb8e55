"""The ``prefillsim`` commands that a document shows."""

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "prefillsim"

ENDS = {";", "|", ">", ">>", "&&", "||", "&", ")", "<"}

SHELLS = {"", "sh", "bash", "shell", "console", "yaml"}
"""Languages of fenced blocks that are looked at."""


@dataclass(frozen=True)
class Example:
    """One command."""

    document: str
    line: int
    argv: tuple[str, ...]
    block: int
    """The line at which its block begins: commands of a block build on each other."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {shlex.join([PROGRAM, *self.argv])}"


def examples_of(path: Path, name: str) -> list[Example]:
    """Return the commands of the blocks of a document, shell variables replaced as far as their block sets them."""
    return [
        Example(name, line, argv, start)
        for start, block in _blocks(path.read_text().splitlines())
        for line, text in _expanded(_logical(start, block))
        for argv in commands_in(text)
    ]


def inline_commands(path: Path) -> list[str]:
    """Return what follows the program's name wherever prose or a table has it as code."""
    return [text.replace("\\|", "|") for text in re.findall(rf"`{PROGRAM} ([^`]+)`", path.read_text())]


def commands_in(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of each call in a line of shell, within quotes too."""
    if not re.search(rf"(^|[\s\"'(]){PROGRAM} ", text):
        return
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    tokens = list(lexer)
    for k, token in enumerate(tokens):
        if token == PROGRAM:
            rest = tokens[k + 1 :]
            end = next((j for j, t in enumerate(rest) if t in ENDS), len(rest))
            yield tuple(rest[:end])
        elif token.startswith(f"{PROGRAM} "):
            yield from commands_in(token)


def toml_examples(path: Path) -> list[tuple[int, str]]:
    """Return the experiments' files that a document shows, each with its line."""
    found = []
    for start, block in _blocks(path.read_text().splitlines(), {"", "toml"}):
        text = "\n".join(block)
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        if "policies" in data or "trace" in data:
            found.append((start, text))
    return found


def _blocks(lines: list[str], languages: Collection[str] = SHELLS) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number, from 1, and the lines of each indented block, or fenced one of these languages."""
    start, block, fence = 0, [], None
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("```"):
            if fence is None:
                fence, start, block = line[3:].strip(), number + 1, []
            else:
                if fence in languages:
                    yield start, block
                fence, block = None, []
        elif fence is not None:
            block.append(line)
        elif line.startswith("    "):
            start = start if block else number
            block.append(line[4:])
        elif block and line.strip():
            yield start, block
            block = []
        elif block and number > len(lines):
            yield start, block
        elif block:
            block.append("")


def _logical(start: int, block: list[str]) -> Iterator[tuple[int, str]]:
    """Yield lines whose continuations are joined, with the number of their first."""
    pending, first = "", start
    for number, line in enumerate(block, start):
        first = first if pending else number
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        yield first, pending
        pending = ""


def _expanded(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Replace variables by what the block has set them to, those of loops by their first value, others by 0."""
    values: dict[str, str] = {}
    for number, line in lines:
        line = re.sub(r"\$(\w+)", lambda m: values.get(m[1], "0"), line)
        if found := re.match(r"\s*for (\w+) in (\S+)", line):
            values[found[1]] = found[2]
        elif found := re.match(r"\s*(?:export )?(\w+)=(\"[^\"]*\"|\S*)\s*$", line):
            values[found[1]] = found[2].strip('"')
        yield number, line
