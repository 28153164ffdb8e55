"""``prefillsim sweep``: a grid of runs from a TOML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


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
    sets: o.Sets = None,
    out: o.Out = None,
    resume: o.Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, run none.")] = False,
    json: o.Json = False,
) -> None:
    """Run the product of the axes on all cores; what is finished is kept, and --resume goes on from there."""
    draft = o.collect(file, sets, name=_name(file), seeds=seeds, seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.axes import plan
    from experiments.compare import run_warnings
    from experiments.folders import check_free
    from experiments.report import aggregated, show_sweep
    from experiments.sweep import INDEX, run_sweep

    if not resume:
        check_free(out)
    experiment = plan(draft)
    if dry_run:
        cells = [cell.describe() for cell in experiment.cells]
        if json:
            output.emit({"name": experiment.config.name, "runs": len(cells), "cells": cells, "notes": experiment.notes})
        else:
            output.say(*cells, f"{len(cells)} runs")
            output.warn(experiment.notes)
        return
    result = run_sweep(experiment, out=out, resume=resume, jobs=jobs, progress=not json and sys.stderr.isatty())
    failures = result.failure_lines
    warnings = run_warnings(result)
    if json:
        output.emit(
            {
                "name": experiment.config.name,
                "out": str(result.out),
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


def _name(file: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in file.stem).lstrip("._-")
    return kept or "sweep"
