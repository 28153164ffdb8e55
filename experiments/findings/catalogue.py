"""All questions, found among the modules of :mod:`experiments.findings.questions`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from experiments.config import ConfigError, suggest
from experiments.findings.question import FOLDER, Question


@cache
def questions() -> tuple[Question, ...]:
    """Return every module's ``QUESTION`` in the order of the page."""
    names = [module.name for module in iter_modules([str(FOLDER)])]
    found = [import_module(f"experiments.findings.questions.{name}").QUESTION for name in names]
    return tuple(sorted(found, key=lambda question: question.place))


def find(names: list[str]) -> tuple[Question, ...]:
    """Return the questions of these names, all of them for none.

    Raises:
        ConfigError: if there is none of a name.
    """
    known = {question.name: question for question in questions()}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no question {name}{suggest(name, list(known))}")
    return tuple(known[name] for name in names or known)
