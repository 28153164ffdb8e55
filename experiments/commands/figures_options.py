"""What the commands of ``prefillsim figures`` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


def seeds_of(seeds: int | None, first: int | None, default: int) -> range:
    """Return the seeds that the options ask for.

    Raises:
        ConfigError: if there are too few for an interval.
    """
    from experiments.config import MOST_SEEDS, ConfigError

    n = default if seeds is None else seeds
    if not 2 <= n <= MOST_SEEDS:
        raise ConfigError(f"--seeds is {n}, but intervals need at least 2 seeds and at most {MOST_SEEDS} make sense")
    return range(first or 0, (first or 0) + n)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say after Ctrl-C how to go on with the whole command, and not with the sweep in which it was.

    Raises:
        Interrupted: on Ctrl-C.
    """
    from experiments.sweep import Interrupted, resume_command

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        go_on = resume_command(folder)
        raise Interrupted(f"interrupted: what is finished is kept in {folder}; go on with: {go_on}") from None


def end(failed: dict[str, str]) -> None:
    """Report what failed and end the command with exit status 1; do nothing where nothing has.

    Raises:
        typer.Exit: if something has failed.
    """
    import sys

    for name, error in failed.items():
        print(f"failed: {name}: {error}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)
