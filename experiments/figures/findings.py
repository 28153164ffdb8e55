"""``prefillsim figures findings``: questions are run, and answered on a page beside their files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config import ConfigError
from experiments.findings.page import page, reflowed
from experiments.findings.question import Question
from experiments.findings.runs import missing_traces, run, stored
from experiments.sweep import Interrupted, Stopped
from policies.base import PolicyError
from sim.store import atomic_write
from traces.schema import TraceError

PAGE = "findings.md"


@dataclass
class Answered:
    """What came of the questions, by name."""

    answers: dict[str, str] = field(default_factory=dict)
    """Paragraphs in Markdown."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a question could not be asked here."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong."""
    files: list[Path] = field(default_factory=list)


def why_not(question: Question) -> str | None:
    """Return why a question cannot be asked here, or ``None``."""
    missing = missing_traces(question)
    if not missing:
        return None
    names = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
    there = "is not there; it is a public trace" if len(missing) == 1 else "are not there; they are public traces"
    return f"{names} {there}, looked for from the working folder"


def answer_all(
    asked: Sequence[Question],
    folder: Path,
    *,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    told: Callable[[str, str], None] = lambda name, answer: None,
) -> Answered:
    """Run questions one after another into ``folder``, and write ``findings.md`` of those that are answered.

    Args:
        asked: the questions.
        folder: for everything; pictures and tables lie beside the page.
        resume: go on in a folder that exists.
        jobs: processes.
        progress: draw bars on stderr.
        told: called with each question's name and answer as soon as it is known.

    Raises:
        Interrupted: on Ctrl-C.
        OSError: if something cannot be written.
    """
    found = Answered()
    for question in asked:
        if (reason := why_not(question)) is not None:
            found.skipped[question.name] = reason
            continue
        try:
            found.files += run(question, folder, resume=resume, jobs=jobs, progress=progress)
        except Interrupted:
            raise
        except (ConfigError, TraceError, PolicyError, Stopped) as e:
            found.failed[question.name] = str(e)
            continue
        found.answers[question.name] = reflowed(question.answer(stored(question, folder)))
        told(question.name, found.answers[question.name])
    if found.answers:
        found.files.append(write_page([q for q in asked if q.name in found.answers], folder))
    return found


def write_page(answered: Sequence[Question], folder: Path) -> Path:
    """Write ``findings.md`` beside the files of its questions, and the TOML files that it links to.

    Raises:
        ConfigError: if a question has not been run.
        OSError: if something cannot be written.
    """
    for question in answered:
        for file in question.files:
            shutil.copyfile(file, folder / file.name)
    text = page({q.name: stored(q, folder) for q in answered}, answered)
    # The page in docs has its pictures one folder below, and the experiments in the repository.
    text = re.sub(r"\]\((?:findings/|\.\./experiments/findings/questions/)", "](", text).replace("`findings/", "`")
    path = folder / PAGE
    atomic_write(path, text.encode())
    return path
