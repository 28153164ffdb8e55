"""``prefillsim advise``: which policy to serve a trace with, on how many replicas, and how to start vLLM."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from experiments.commands import options as o

Attainment = Annotated[
    float,
    typer.Option(
        "--attainment", metavar="PCT", help="Requests that should meet every objective.", rich_help_panel=o.RUN
    ),
]
MostReplicas = Annotated[
    int,
    typer.Option(
        "--most-replicas", min=1, max=1024, metavar="N", help="More replicas are not tried.", rich_help_panel=o.MEMORY
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be run.", rich_help_panel=o.OUTPUT)]

NOT_REACHED = 1
"""Exit status where nothing surely reaches the level."""


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise")(advise)


def advise(
    attainment: Attainment = 90.0,
    most_replicas: MostReplicas = 64,
    policy: o.Policies = None,
    workload: o.Workload = None,
    trace: o.TraceFile = None,
    limit: o.Limit = None,
    rate: o.Rate = None,
    rate_scale: o.RateScale = None,
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
    dry_run: DryRun = False,
    json: o.Json = False,
) -> None:
    """Advise on a trace: which policy, with which parameters, on how many replicas, and vLLM's options for it.

    Of a file the first 1,000 requests are taken (--limit), with Poisson arrivals at their own rate (--rate,
    --rate-scale). --replicas N fixes their number. -p adds policies of your own choice to those that are tried.
    --seeds N (10) are for the numbers reported; policies are tuned on others.
    """
    draft = o.collect(config, sets, name="advise", seeds=seeds, seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.advice.plan import check_level, new_folder, outlook, planned
    from experiments.advice.search import advise as find
    from experiments.advice.search import check_tells
    from experiments.advice.shown import document, show_advice, write_advice
    from experiments.advice.trace import task_of
    from experiments.advice.warnings import warnings_of
    from experiments.folders import check_free
    from experiments.sweep import keep_finished

    level = check_level(attainment)
    if not resume and not dry_run:
        check_free(out)
    task = task_of(draft)
    check_tells(task, level, most_replicas)
    if dry_run:
        described = planned(task, level)
        if json:
            output.emit(described)
        else:
            output.say(*outlook(described))
        return
    folder = out or new_folder(resume)
    if not json:
        output.say(*outlook(planned(task, level)), "")
    progress = not json and sys.stderr.isatty()
    advice = find(task, level, most=most_replicas, out=folder, resume=resume, jobs=jobs, progress=progress)
    with keep_finished(folder, advice.runs.finished()):
        paths = write_advice(advice, folder)
    if json:
        output.emit({**document(advice), "out": str(folder), "files": [str(path) for path in paths]})
    else:
        show_advice(advice)
        output.say(f"page: {folder / 'advice.md'}", f"picture: {folder / 'advice.png'}", f"results: {folder}")
        output.warn(warnings_of(advice))
    if not advice.reached:
        raise typer.Exit(NOT_REACHED)
