"""The ``prefillsim`` command."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Annotated

import typer

import experiments.commands

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for wrong options and arguments."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

FULL = (errno.ENOSPC, errno.EDQUOT)

# A process that ends gives all its memory back; Python would look for garbage in it first.
atexit.register(gc.freeze)


def make_app() -> typer.Typer:
    """Return the command with everything in ``experiments.commands``."""
    app = typer.Typer(
        help="Decide how a language-model server should schedule prefill work.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for module in sorted(pkgutil.iter_modules(experiments.commands.__path__), key=lambda m: m.name):
        add = getattr(importlib.import_module(f"experiments.commands.{module.name}"), "add", None)
        if add is not None:
            add(app)
    return app


@functools.cache
def _command() -> Callable[..., int | None]:
    """Typer reads every command's signature for this, which takes longer than a small simulation."""
    return typer.main.get_command(make_app())


def _print_version(wanted: bool) -> None:
    if wanted:
        from experiments.cells import package_version

        print(f"prefillsim {package_version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status.

    0: done. 1: a run failed, or a check found errors. 2: the input cannot be used, or the output cannot be written, in
    one sentence. 130: interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_standard_files()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = int(_command()(args=arguments, prog_name="prefillsim", standalone_mode=False) or 0)
        if status != INTERRUPTED:
            sys.stdout.flush()
            return status
        sentence = "interrupted; nothing is kept"
    except (BrokenPipeError, SystemExit):
        # The reader has what it wanted (typer turns the error into an exit); Python would complain once more when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as e:
        told = _sentence(e)
        if told is None:
            raise
        if not told:
            return 2
        sentence, status = told, int(getattr(e, "status", 2))
    from experiments.output import visible

    with contextlib.suppress(OSError):  # where stderr cannot be written, the status still says it
        print(f"prefillsim: {visible(sentence)}", file=sys.stderr)
    if "--json" in arguments:
        _emit_error(sentence)
    return status


def _open_standard_files() -> None:
    """Give a process that was started without stdin, stdout or stderr empty ones, and so those that it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, so this one
            os.set_inheritable(null, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(null, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # until the end


def _emit_error(sentence: str) -> None:
    from experiments.output import emit

    try:
        emit({"error": sentence})
        sys.stdout.flush()
    except OSError:
        # stdout is what cannot be written; stderr has the sentence, and Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str | None:
    """Return what to tell the user, nothing after help was shown, ``None`` for an error of ours."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, USAGE_ERROR):
        return str(getattr(error, "format_message", lambda: error)())
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        if error.errno in FULL:
            return f"no space left on device while writing{where or ' results'}{notes}"
        return f"{error.strerror or error}{':' if where else ''}{where}{notes}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    from costmodels.base import CostModelError
    from experiments.config import ConfigError
    from experiments.sweep import Stopped
    from gpu_runner.engine import EngineError
    from gpu_runner.validate.tolerances import ValidationError
    from policies.base import PolicyError
    from sim.objectives import ObjectiveError
    from sim.store import StoreError
    from traces.schema import TraceError

    known = (
        ConfigError,
        TraceError,
        PolicyError,
        CostModelError,
        ObjectiveError,
        StoreError,
        Stopped,
        ValidationError,
        EngineError,
    )
    return f"{error}{notes}" if isinstance(error, known) else None


if __name__ == "__main__":
    sys.exit(main())
