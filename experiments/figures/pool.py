"""Steps of ``prefillsim figures all``, each in this process or in one of several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from experiments.config import ConfigError
from experiments.figures.parts import How, Step, parts
from experiments.sweep import Interrupted

Task = tuple[str, str, Path]
"""Part, step and folder."""


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    seconds: float
    files: tuple[Path, ...] = ()
    error: str | None = None
    trace: str = ""
    """Where the error came from, for the file beside the results."""
    interrupted: bool = False


def make_step(step: Step, folder: Path, how: How) -> Outcome:
    """Make a step; whatever goes wrong is in the outcome, for the other steps are worth having."""
    begun = time.monotonic()
    try:
        files = step.make(folder, how)
    except (Interrupted, KeyboardInterrupt):
        return Outcome(time.monotonic() - begun, interrupted=True)
    except Exception as e:
        told = str(e) if isinstance(e, ConfigError) else f"{type(e).__name__}: {e}"
        return Outcome(time.monotonic() - begun, error=told, trace=traceback.format_exc())
    return Outcome(time.monotonic() - begun, tuple(files))


def make_steps(tasks: Sequence[Task], at_once: int, how: How) -> Iterator[tuple[str, str, Outcome]]:
    """Make steps in processes, ``at_once`` of them beside each other, and yield each as it ends.

    Raises:
        Interrupted: on Ctrl-C, when the processes have ended too.
    """
    # Forked processes would share the threads' locks of libraries that are in use here.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, initializer=_ignore_interrupts) as pool:
        begun = {pool.submit(_make_named, task, how): task for task in tasks}
        try:
            for future in as_completed(begun):
                part, step, _ = begun[future]
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = Outcome(0.0, error="its process, or one beside it, was killed")
                yield part, step, outcome
        except (KeyboardInterrupt, GeneratorExit):
            # A terminal sends it to all of them, others to this one only.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
            raise


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make_named(task: Task, how: How) -> Outcome:
    part, name, folder = task
    (step,) = (s for p in parts() if p.name == part for s in p.steps if s.name == name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return make_step(step, folder, how)
    except KeyboardInterrupt:
        return Outcome(0.0, interrupted=True)
    finally:
        _ignore_interrupts()
