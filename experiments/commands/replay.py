"""``prefillsim replay``: a trace in real time through the real engine, or against a live server."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from experiments.commands import options as o

REPLAY, ENGINE = "Replay", "Engine"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="DIR|NAME", help="What the engine runs, or a server serves.", rich_help_panel=ENGINE
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="A live OpenAI-compatible server.", rich_help_panel=REPLAY),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="NAME", help="vllm, or hybrid: prefills only.", rich_help_panel=ENGINE),
    ] = "vllm",
    speed: Annotated[
        float, typer.Option("--speed", metavar="X", help="X times as fast as the trace.", rich_help_panel=REPLAY)
    ] = 1.0,
    saturate: Annotated[
        bool, typer.Option("--saturate", help="All requests arrive at the start.", rich_help_panel=REPLAY)
    ] = False,
    warm_up: Annotated[
        float,
        typer.Option("--warm-up", metavar="S", min=0, help="Seconds left out of the summary.", rich_help_panel=REPLAY),
    ] = 0.0,
    window: Annotated[
        float | None,
        typer.Option(
            "--window", metavar="S", min=0, help="Seconds after them that the summary counts.", rich_help_panel=REPLAY
        ),
    ] = None,
    dtype: o.Dtype = "auto",
    load_format: o.LoadFormat = "auto",
    max_num_batched_tokens: o.MaxNumBatchedTokens = None,
    engine_arg: o.EngineArgs = None,
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
    max_num_seqs: o.MaxNumSeqs = None,
    max_model_len: o.MaxModelLen = None,
    pipeline_depth: o.PipelineDepth = None,
    kv_blocks: o.KvBlocks = None,
    kv_block_size: o.KvBlockSize = None,
    prefix_cache: o.PrefixCache = None,
    suffix: o.Suffix = None,
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
    """Replay a trace in real time through an engine with each policy, or against a live server; results as of simulate.

    The engines are vLLM, and one that prefills whole prompts in little memory and answers with one token.
    """
    draft = o.collect(config, sets, name="replay", seed=seed, **o.given(locals()))
    from experiments import output
    from experiments.axes import plan
    from experiments.config import ConfigError
    from experiments.folders import check_free
    from experiments.hybrids import ENGINES, hybrid_options_of
    from experiments.replays import (
        Pace,
        check_policies,
        engine_arguments,
        engine_options,
        keep,
        replay_cells,
        replay_server,
    )
    from experiments.report import objectives_line, show_summary
    from policies.registry import nearest

    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}{nearest(engine, ENGINES)} ({', '.join(ENGINES)})")
    check_free(out, may_resume=False)
    if (model is None) and (server is None):
        raise ConfigError("no engine: give --model DIR to run one, or --server URL to use a live one")
    if server is not None and not draft.has("policies"):
        draft.put("policies", ["fcfs+token-budget"], "default")
    o.settle_on_one_run(draft)
    more = engine_arguments(engine_arg or ())
    options: Any = None
    if server is None and engine == "hybrid":
        options = hybrid_options_of(
            draft, str(model), more, max_num_batched_tokens, dtype=dtype, load_format=load_format, seed=seed or 0
        )
    experiment = plan(draft)
    cells = experiment.cells
    if experiment.axes:
        raise ConfigError(f"a replay has no [sweep], but there are {', '.join(experiment.axes)}")
    pace = Pace(speed, saturate, warm_up, window)
    if server is not None and (warm_up or window is not None):
        raise ConfigError("--warm-up and --window are for an engine that runs here, whose steps are known")
    if server is not None:
        if len(cells) > 1:
            raise ConfigError("the policy of a live server is its own: give at most one -p, to say which it is")
        replays = iter([replay_server(cells[0], server, model, os.environ.get("OPENAI_API_KEY"), pace)])
    else:
        check_policies(cells)
        options = options or engine_options(
            draft,
            str(model),
            dtype=dtype,
            load_format=load_format,
            max_num_batched_tokens=max_num_batched_tokens,
            seed=cells[0].seed,
            more=more,
        )
        believed = draft.get("policy_cost_model") or draft.get("cost_model")
        replays = replay_cells(cells, None if believed is None else str(believed), options, pace, batches)
    documents, stopped = [], None
    for done, folder in keep(replays, out, f"{draft.get('name')}-{cells[0].key[:8]}", len(cells) > 1):
        stopped = done.sent.stopped
        facts = done.sent.facts()
        documents.append(
            {
                "policy": done.label,
                "trace": cells[0].source.label,
                "seed": cells[0].seed,
                "objectives": str(cells[0].objectives),
                "replay": facts,
                "summary": done.summary,
                "warnings": [*done.trace.warnings, *done.warnings],
                "out": str(folder),
                "files": sorted(path.name for path in folder.iterdir()),
            }
        )
        if not json:
            title = f"{done.label} on {cells[0].source.label}, {objectives_line(str(cells[0].objectives))}"
            show_summary(title, "", done.summary)
            output.say(f"results: {folder}")
        output.warn([*done.trace.warnings, *done.warnings])
        if stopped is not None:
            output.warn([f"{stopped}; of {facts['sent']} requests that were sent the results are kept"])
    if json:
        output.emit({"replays": documents})
    if stopped is not None:
        raise typer.Exit(1)
