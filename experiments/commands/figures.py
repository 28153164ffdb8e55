"""``prefillsim figures``: the tables and figures of a paper, regenerated, and questions that neither answers."""

from __future__ import annotations

import typer

from experiments.commands.figures_all import all_parts
from experiments.commands.figures_findings import findings
from experiments.commands.figures_prefillonly import prefillonly, prefillonly_more
from experiments.commands.figures_sloweave import sloweave, sloweave_gpu


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Regenerate a paper's tables and figures.", no_args_is_help=True)
    group.callback()(_group)
    group.command("sloweave")(sloweave)
    group.command("sloweave-gpu")(sloweave_gpu)
    group.command("prefillonly")(prefillonly)
    group.command("prefillonly-more")(prefillonly_more)
    group.command("findings")(findings)
    group.command("all")(all_parts)
    app.add_typer(group, name="figures")


def _group() -> None:
    pass
