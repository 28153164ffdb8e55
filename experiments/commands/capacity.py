"""``prefillsim capacity``: the highest rate at which a policy keeps its promise to most users."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from experiments.commands import options as o

Attainment = Annotated[
    str,
    typer.Option(
        "--attainment",
        metavar="PCT,...",
        help="Shares of requests that should meet every objective, in percent.",
        rich_help_panel=o.RUN,
    ),
]
Span = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="LOW:HIGH",
        help="Where to search, in requests/s; by default around the trace's own rate.",
        rich_help_panel=o.RUN,
    ),
]
Precision = Annotated[
    float,
    typer.Option(
        "--precision", min=0.001, max=1.0, metavar="X", help="Neighbouring rates differ by X.", rich_help_panel=o.RUN
    ),
]
Confidence = Annotated[
    float,
    typer.Option("--confidence", min=0.5, max=0.9999, metavar="X", help="Of each interval.", rich_help_panel=o.RUN),
]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity")(capacity)


def capacity(
    policy: o.Policies = None,
    attainment: Attainment = "90,99",
    rates: Span = None,
    precision: Precision = 0.025,
    confidence: Confidence = 0.95,
    workload: o.Workload = None,
    trace: o.TraceFile = None,
    limit: o.Limit = None,
    rate: o.Rate = None,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    slo: o.Slo = None,
    cost_model: o.CostModel = None,
    policy_cost_model: o.PolicyCostModel = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_model_len: o.MaxModelLen = None,
    pipeline_depth: o.PipelineDepth = None,
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
    seeds: o.Seeds = None,
    seed: o.Seed = None,
    plugin: o.Plugins = None,
    jobs: o.Jobs = None,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    out: o.Out = None,
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """Find the highest rate at which each policy keeps 90 % and 99 % attainment, as an interval.

    --seeds N is the most that are run at one rate (64 by default). --rate R is where the search starts, and gives a
    file Poisson arrivals that differ by seed; without it a file's own arrivals are made denser.
    """
    draft = o.collect(config, sets, name="capacity", seeds=seeds, seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.capacity.options import parse_levels, parse_rates
    from experiments.capacity.report import show_capacity, write_capacity
    from experiments.capacity.runs import measure_capacity, new_folder
    from experiments.cells import json_bytes
    from experiments.folders import check_free
    from experiments.sweep import keep_finished
    from sim.store import atomic_write

    levels = parse_levels(attainment)
    span = None if rates is None else parse_rates(rates)
    if not resume:
        check_free(out)
    folder = out or new_folder(resume)
    measured = measure_capacity(
        draft,
        levels,
        span=span,
        precision=precision,
        confidence=confidence,
        out=folder,
        resume=resume,
        jobs=jobs,
        progress=not json and sys.stderr.isatty(),
    )
    document = measured.document()
    runs = len(measured.sweep.experiment.cells)
    with keep_finished(folder, runs):
        atomic_write(folder / "capacity.json", json_bytes(document))
        paths = write_capacity(measured, folder)
    if json:
        output.emit({**document, "out": str(folder), "files": [str(path) for path in paths]})
    else:
        show_capacity(measured)
        output.say(f"picture: {folder / 'capacity.png'}", f"results: {folder}")
        output.warn(measured.warnings)
    output.fail_with(measured.sweep.failure_lines, runs)
