"""``prefillsim sweep``: a grid of runs from a TOML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import options as o

if TYPE_CHECKING:
    from experiments.axes import Experiment
    from experiments.shards import Shard
    from experiments.sweep import SweepResult


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment, with its axes in [sweep].")],
    seeds: o.Seeds = None,
    seed: o.Seed = None,
    plugin: o.Plugins = None,
    kv_blocks: o.KvBlocks = None,
    kv_block_size: o.KvBlockSize = None,
    prefix_cache: o.PrefixCache = None,
    memory: o.MemoryRegime = None,
    suffix: o.Suffix = None,
    max_input: o.MaxInput = None,
    gpu: o.GpuName = None,
    llm: o.LlmName = None,
    mode: o.Mode = None,
    tp: o.Tp = None,
    pp: o.Pp = None,
    link: o.Link = None,
    replicas: o.Replicas = None,
    router: o.RouterName = None,
    jobs: o.Jobs = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="WHERE",
            help="in-process, processes, or an existing Dask cluster: tcp://HOST:PORT.",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", help="Part I of N only, into the folder that all share.", rich_help_panel=o.RUN
        ),
    ] = None,
    sets: o.Sets = None,
    out: o.Out = None,
    resume: o.Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, run none.")] = False,
    json: o.Json = False,
) -> None:
    """Run the product of the axes, on all cores or a cluster; what is finished is kept, and --resume goes on."""
    from experiments.processes import begun

    given = o.given(locals())
    # There may be no run left where some are finished.
    with begun(None if dry_run or resume or shard else jobs, cluster):
        draft = o.collect(file, sets, name=_name(file), seeds=seeds, seed=seed, **given)
        from experiments import output
        from experiments.axes import plan
        from experiments.compare import run_warnings
        from experiments.folders import check_free
        from experiments.report import aggregated, show_sweep
        from experiments.shards import Shard
        from experiments.sweep import INDEX, run_sweep

        part = None if shard is None else Shard.parse(shard)
        if not resume and part is None:
            check_free(out)
        experiment = plan(draft)
        if dry_run:
            _list_runs(experiment, part, json)
            return
        progress = not json and sys.stderr.isatty()
        result = run_sweep(
            experiment, out=out, resume=resume, jobs=jobs, progress=progress, cluster=cluster, shard=part
        )
    failures = result.failure_lines
    if not result.complete:
        _show_shard(result, shard, failures, json)
        return
    warnings = run_warnings(result)
    if json:
        output.emit(
            {
                "name": experiment.config.name,
                "out": str(result.out),
                "complete": True,
                "axes": experiment.axes,
                "runs": len(experiment.cells),
                "reused": result.reused,
                "failures": failures,
                "notes": experiment.notes,
                "warnings": warnings,
                "points": aggregated(result),
                "files": [str(result.out / name) for name in ("summary.parquet", "summary.csv", INDEX)],
            }
        )
    else:
        show_sweep(result)
        output.say(f"{len(experiment.cells)} runs, {result.reused} of them from before", f"results: {result.out}")
        output.warn([*experiment.notes, *warnings])
    output.fail_with(failures, len(experiment.cells))


def _list_runs(experiment: Experiment, part: Shard | None, json: bool) -> None:
    """Say what would run."""
    from experiments import output

    chosen = experiment.cells if part is None else part.of(list({c.key: c for c in experiment.cells}.values()))
    cells = [cell.describe() for cell in chosen]
    if json:
        output.emit({"name": experiment.config.name, "runs": len(cells), "cells": cells, "notes": experiment.notes})
    else:
        output.say(*cells, f"{len(cells)} runs")
        output.warn(experiment.notes)


def _show_shard(result: SweepResult, shard: str | None, failures: list[str], json: bool) -> None:
    """Say how far the shards have come; there are no tables until all are finished."""
    from experiments import output
    from experiments.sweep import finished_cells, resume_command

    total, finished = len(result.experiment.cells), finished_cells(result.out)
    counts = {"runs": len(result.results), "reused": result.reused}
    if json:
        output.emit(
            {
                "name": result.experiment.config.name,
                "out": str(result.out),
                "complete": False,
                "shard": shard,
                **counts,
                "finished": finished,
                "of": total,
                "failures": failures,
                "notes": result.experiment.notes,
            }
        )
    else:
        output.say(
            f"shard {shard}: {counts['runs']} runs, {counts['reused']} of them from before",
            f"{finished} of all {total} runs are finished in {result.out}; the last shard writes the tables, or, when "
            f"all have ended: {resume_command(result.out, whole=True)}",
        )
        output.warn(result.experiment.notes)
    output.fail_with(failures, counts["runs"])


def _name(file: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in file.stem).lstrip("._-")
    return kept or "sweep"
