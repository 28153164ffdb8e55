"""``prefillsim why``: for what reason requests waited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("why")(why)


def why(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    request: Annotated[
        str | None, typer.Option("--request", metavar="ID", help="One request's whole story, step by step.")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="Everybody who waited in this step.")] = None,
    plugin: o.Plugins = None,
    json: o.Json = False,
) -> None:
    """Tell why requests waited: tokens, slots, KV memory, or others that came first.

    A simulation is made again from its record; of other runs the tables tell what they can.
    """
    from experiments import output
    from experiments.config import ConfigError
    from experiments.why.again import one_run
    from experiments.why.shown import show_request, show_step, show_totals
    from experiments.why.stories import explain

    if request is not None and step is not None:
        raise ConfigError("--request and --step exclude each other; give one of them")
    found = explain(one_run(folder), [Path(p) for p in plugin or ()], step)
    if request is not None:
        document, show = found.request(request), show_request
    elif step is not None:
        document, show = found.step(step), show_step
    else:
        document, show = found.totals(), show_totals
    if json:
        output.emit(document)
    else:
        show(document)
