"""``prefillsim tune-lambda``: the fairness λ that makes mean latency least while P99 latency keeps a bound."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from experiments.commands import options as o

P99Bound = Annotated[
    str,
    typer.Option(
        "--p99-bound",
        metavar="30s|30000ms|1.2x",
        help="What P99 latency must keep: a time, or a multiple of first come, first served's.",
        rich_help_panel=o.RUN,
    ),
]
Lams = Annotated[
    str | None,
    typer.Option("--lams", metavar="X,...", help="λ to try, in tokens/s, beside 0 and inf.", rich_help_panel=o.RUN),
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=0, max=10, help="Refinements around the best λ.", rich_help_panel=o.RUN)
]

NO_LAMBDA = 1
"""Exit status where no λ keeps the bound."""


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune-lambda")(tune_lambda)


def tune_lambda(
    policy: o.Policies = None,
    p99_bound: P99Bound = "1x",
    lams: Lams = None,
    rounds: Rounds = 2,
    workload: o.Workload = None,
    trace: o.TraceFile = None,
    limit: o.Limit = None,
    rate: o.Rate = None,
    rate_scale: o.RateScale = None,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    cost_model: o.CostModel = None,
    policy_cost_model: o.PolicyCostModel = None,
    max_num_seqs: o.MaxNumSeqs = None,
    pipeline_depth: o.PipelineDepth = None,
    max_model_len: o.MaxModelLen = None,
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
    """Find the λ of least mean latency whose P99 keeps a bound, and show the whole trade-off."""
    draft = o.collect(config, sets, name="tune-lambda", seeds=seeds, seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.bound import Bound
    from experiments.cells import json_bytes
    from experiments.folders import check_free
    from experiments.tradeoff import show_tradeoff, write_tradeoff
    from experiments.tuning import new_folder, parse_lams, tune
    from sim.store import atomic_write

    bound = Bound.parse(p99_bound)
    grid = None if lams is None else parse_lams(lams)
    if not resume:
        check_free(out)
    folder = out or new_folder(resume)
    if not draft.has("policies"):
        draft.put("policies", ["prefillonly"], "default")
    progress = not json and sys.stderr.isatty()
    tuned = tune(draft, bound, grid=grid, rounds=rounds, out=folder, resume=resume, jobs=jobs, progress=progress)
    document = tuned.document()
    atomic_write(folder / "tune-lambda.json", json_bytes(document))
    paths = write_tradeoff(tuned, folder)
    if json:
        output.emit({**document, "out": str(folder), "files": [str(path) for path in paths]})
    else:
        show_tradeoff(tuned)
        output.say(f"picture: {folder / 'tradeoff.png'}", f"results: {folder}")
        output.warn(tuned.warnings)
    output.fail_with(tuned.failures, len(tuned.experiment.cells))
    if tuned.chosen is None:
        raise typer.Exit(NO_LAMBDA)
