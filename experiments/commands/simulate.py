"""``prefillsim simulate``: one policy on one trace, every record kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
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
    seed: o.Seed = None,
    plugin: o.Plugins = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="Also store every batch: request and tokens.", rich_help_panel=o.OUTPUT)
    ] = False,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    out: o.Out = None,
    json: o.Json = False,
) -> None:
    """Run one policy on one trace into one folder: requests.parquet, steps.parquet, summary.json, run.json."""
    draft = o.collect(config, sets, name="simulate", seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.axes import only_cell, plan
    from experiments.folders import check_free, claim
    from experiments.report import objectives_line, show_summary
    from experiments.run import check_cells, run_info, simulate_cell, store
    from sim.provenance import provenance

    check_free(out, may_resume=False)
    o.settle_on_one_run(draft)
    cell = only_cell(plan(draft))
    check_cells([cell])
    started = time.perf_counter()
    requests, tables, result = simulate_cell(cell)
    info = run_info(cell, result, provenance(), time.perf_counter() - started)

    def fill(folder: Path) -> None:
        store(folder, cell, requests, tables, result, info, batches)

    folder = claim(out, f"{draft.get('name')}-{cell.key[:8]}", fill, may_resume=False)
    warnings = [*requests.warnings, *result.warnings]
    if json:
        output.emit(
            {
                "policy": cell.label,
                "trace": cell.source.label,
                "seed": cell.seed,
                "objectives": str(cell.objectives),
                "memory": cell.memory and cell.memory.to_dict(),
                "cluster": cell.cluster.model_dump(),
                "summary": result.summary,
                "warnings": warnings,
                "out": str(folder),
                "files": sorted(path.name for path in folder.iterdir()),
            }
        )
        return
    show_summary(f"{cell.describe()}, {objectives_line(str(cell.objectives))}", cell.replicas, result.summary or {})
    output.say(f"results: {folder}")
    output.warn(warnings)
