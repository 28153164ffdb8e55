"""The parts of ``prefillsim figures all``, and the steps of each, which are finished one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.figures.findings import why_not, write_page
from experiments.figures.sources import floor_files, hash_of_files, module_files
from experiments.findings.catalogue import questions
from experiments.findings.question import FOLDER, Question

FINDINGS = "findings"

UNCOMPARED = {"prefillonly-more": ("left-out-decisions.csv",), "sloweave-gpu": ("per-seed.csv", "tuning.csv")}
"""Tables, by part, that hold times measured on this machine, or every single run behind those that are compared."""


@dataclass(frozen=True)
class How:
    """How a step is made."""

    jobs: int | None = None
    progress: bool = False


@dataclass(frozen=True)
class Step:
    """What is made in one go."""

    name: str
    make: Callable[[Path, How], list[Path]]
    """Writes into a folder; goes on with what is there of the same runs."""
    seconds: float
    """How long it took, of one core; only for saying how long all will take."""
    sources: Callable[[], str]
    """Hash of what it depends on."""
    why_not: Callable[[], str | None] = lambda: None
    """Why it cannot be made here."""
    always: bool = False
    """Whether it is made again even where nothing has changed."""


@dataclass(frozen=True)
class Part:
    """Everything that is written into one folder."""

    name: str
    steps: tuple[Step, ...]

    @property
    def uncompared(self) -> tuple[str, ...]:
        """Names of tables that are not committed."""
        return UNCOMPARED.get(self.name, ())


def parts() -> tuple[Part, ...]:
    """Return all parts, in the order in which they are made."""
    return (
        Part("sloweave", (_step("figures", _sloweave, 65, "experiments.sloweave.regenerate"),)),
        Part("sloweave-gpu", (_step("figures", _sloweave_gpu, 68, "experiments.sloweave.gpu"),)),
        Part(
            "prefillonly",
            (
                _step("figures", _prefillonly, 310, "experiments.prefillonly.regenerate"),
                _step("figure11", _figure11, 20, "experiments.prefillonly.fairness"),
                _step("claims", _claims, 1, "experiments.prefillonly.claims"),
            ),
        ),
        Part("prefillonly-more", _left_out()),
        Part(FINDINGS, _findings()),
    )


def _step(name: str, make: Callable[[Path, How], list[Path]], seconds: float, module: str) -> Step:
    return Step(name, make, seconds, lambda: hash_of_files([*floor_files(), *module_files(module)]))


def _sloweave(folder: Path, how: How) -> list[Path]:
    from experiments.sloweave.regenerate import regenerate

    return regenerate(folder, resume=True, jobs=how.jobs, progress=how.progress).files


def _sloweave_gpu(folder: Path, how: How) -> list[Path]:
    from experiments.sloweave.gpu import regenerate_gpu
    from experiments.sloweave.gpu_blocks import load_experiment

    return regenerate_gpu(folder, range(load_experiment().seeds), how.jobs).files


def _prefillonly(folder: Path, how: How) -> list[Path]:
    from experiments.prefillonly.regenerate import regenerate

    return regenerate(folder, figure11=False, resume=True, jobs=how.jobs, progress=how.progress).files


def _figure11(folder: Path, how: How) -> list[Path]:
    from experiments.prefillonly.fairness import draw_figure11
    from experiments.prefillonly.regenerate import SEEDS

    return draw_figure11(folder, SEEDS, how.jobs)


def _claims(folder: Path, how: How) -> list[Path]:
    from experiments.prefillonly.claims import draw_claims
    from experiments.prefillonly.regenerate import SEEDS

    return draw_claims(folder, SEEDS)


def _left_out() -> tuple[Step, ...]:
    from experiments.prefillonly.leftout import LEFT_OUT_SEEDS, STUDIES, draw_decisions
    from experiments.prefillonly.scaling import draw_scaling
    from experiments.prefillonly.study import Study

    def of(study: Study) -> Callable[[Path, How], list[Path]]:
        return lambda folder, how: study.run(folder, LEFT_OUT_SEEDS, how.jobs)

    module = "experiments.prefillonly.leftout"
    studies = tuple(_step(study.stem, of(study), 26, module) for study in STUDIES)
    scaling = _step("left-out-lambda", lambda folder, how: draw_scaling(folder, LEFT_OUT_SEEDS, how.jobs), 20, module)
    return (*studies, scaling, _step("left-out-decisions", lambda folder, _: draw_decisions(folder), 10, module))


def _findings() -> tuple[Step, ...]:
    asked = questions()

    def page(folder: Path, _: How) -> list[Path]:
        answered = [question for question in asked if (folder / f"{question.name}-runs.csv").is_file()]
        return [write_page(answered, folder)] if answered else []

    last = Step(
        "findings.md", page, 1, lambda: hash_of_files(module_files("experiments.figures.findings")), always=True
    )
    return (*(_asked(question) for question in asked), last)


def _asked(question: Question) -> Step:
    def make(folder: Path, how: How) -> list[Path]:
        from experiments.findings.runs import run

        return run(question, folder, resume=True, jobs=how.jobs, progress=how.progress)

    def sources() -> str:
        shared = [*FOLDER.parent.glob("*.py"), *(FOLDER.parent / "plugins").glob("*.py")]
        own = [*shared, FOLDER / f"{question.name}.py", *question.files]
        return hash_of_files([*floor_files(), *module_files("experiments.findings.runs"), *own])

    return Step(question.name, make, 23, sources, lambda: why_not(question))
