"""``prefillsim compare``: policies side by side on the same traces."""

from __future__ import annotations

import sys

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
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
    horizon: o.Horizon = None,
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
    """Compare policies on the same traces: means with confidence intervals, a picture, a results folder."""
    draft = o.collect(config, sets, name="compare", seeds=seeds, seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.axes import plan
    from experiments.bounds import bound_lines, compared
    from experiments.cells import json_bytes
    from experiments.compare import check_comparable
    from experiments.compare import compare as aggregate
    from experiments.figure import write_figure
    from experiments.folders import check_free
    from experiments.processes import begun
    from experiments.report import show_comparison
    from experiments.run import check_cells
    from experiments.sweep import keep_finished, run_sweep
    from sim.store import atomic_write

    # There may be no run left where some are finished.
    with begun(None if resume else jobs):
        if not resume:
            check_free(out)
        experiment = plan(draft)
        check_comparable(experiment.cells)
        check_cells(experiment.cells)
        sweep = run_sweep(experiment, out=out, resume=resume, jobs=jobs, progress=not json and sys.stderr.isatty())
    comparison = aggregate(sweep)
    bounds = compared(experiment.cells, sweep.results)
    document = {**comparison.document(sweep), **({} if bounds is None else {"bounds": bounds})}
    with keep_finished(sweep.out, len(experiment.cells)):
        atomic_write(sweep.out / "compare.json", json_bytes(document))
        paths = write_figure(comparison, sweep.out)
    if json:
        output.emit({**document, "out": str(sweep.out), "files": [str(path) for path in paths]})
    else:
        show_comparison(comparison)
        output.say(*bound_lines(bounds))
        output.say(f"picture: {sweep.out / 'compare.png'}", f"results: {sweep.out}")
        output.warn(comparison.warnings)
    output.fail_with(comparison.failures, len(experiment.cells))
