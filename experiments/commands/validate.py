"""``prefillsim validate``: is the simulation true?"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import options as o

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_runner.validate.sections import Section
    from gpu_runner.validate.tolerances import Tolerances
    from traces.schema import Trace

ENGINE = "Engine"


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    recorded: Annotated[
        list[Path] | None,
        typer.Option(
            "--recorded",
            metavar="DIR",
            help="A recorded run: a public one with its kernel times, or a run folder; several are repeats.",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|NAME", help="What the engine is to run here.", rich_help_panel=ENGINE),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="NAME", help="vllm, or hybrid: prefills only.", rich_help_panel=ENGINE),
    ] = "vllm",
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Measured steps of that engine, from `prefillsim profile`; gives L1 and the cost model.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    rho: Annotated[
        str,
        typer.Option(
            "--rho",
            metavar="R,...",
            help="Offered rates over the largest stable one; none: only all at once.",
            rich_help_panel=ENGINE,
        ),
    ] = "0.5,0.7,0.85,0.95",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Replays at each rate.", rich_help_panel=ENGINE)
    ] = 3,
    promise: Annotated[
        float | None,
        typer.Option(
            "--promise",
            metavar="R",
            help="Instead, all policies at R requests/s: few late gaps, and prompts no later than by fixed chunks?",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    dtype: o.Dtype = "auto",
    load_format: o.LoadFormat = "auto",
    max_num_batched_tokens: o.MaxNumBatchedTokens = None,
    engine_arg: o.EngineArgs = None,
    tolerance: Annotated[
        str,
        typer.Option(
            "--tolerance",
            metavar="NAME:%,...",
            help="Largest errors, like ttft:10,jct_p99:15,step:10; 10 each by default.",
            rich_help_panel=o.RUN,
        ),
    ] = "",
    policy: o.Policies = None,
    workload: o.Workload = None,
    trace: o.TraceFile = None,
    limit: o.Limit = None,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    cost_model: o.CostModel = None,
    pipeline_depth: Annotated[
        int | None,
        typer.Option(
            "--pipeline-depth",
            metavar="1|2",
            min=1,
            max=2,
            help="Steps in flight that are judged; by default as the engine ran.",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option("--llm", metavar="NAME", help="The model served, if not as named.", rich_help_panel=o.RUN),
    ] = None,
    slo: o.Slo = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_model_len: o.MaxModelLen = None,
    kv_blocks: o.KvBlocks = None,
    kv_block_size: o.KvBlockSize = None,
    prefix_cache: o.PrefixCache = None,
    suffix: o.Suffix = None,
    plugin: o.Plugins = None,
    out: o.Out = None,
    seed: o.Seed = None,
    json: o.Json = False,
) -> None:
    """Compare simulated with real runs: report.html, report.json and pictures; exit 1 past the tolerances.

    The real runs are recorded ones (--recorded), or are made here (--model): step times, schedules and latencies.
    """
    from experiments.config import ConfigError
    from experiments.hybrids import check_engine, hybrid_options_of
    from gpu_runner.validate.tolerances import Tolerances

    check_engine(engine)
    tolerances = Tolerances.parse(tolerance)
    if (recorded is None) == (model is None):
        raise ConfigError("nothing to validate: give --recorded DIR for runs there are, or --model DIR to make some")
    engine_only = {
        "--engine": None if engine == "vllm" else engine,
        "--profile": profile,
        "--promise": promise,
        "--policy": policy,
        "--workload": workload,
        "--trace": trace,
        "--limit": limit,
        "--max-num-seqs": max_num_seqs,
        "--max-model-len": max_model_len,
        "--kv-blocks": kv_blocks,
        "--kv-block-size": kv_block_size,
        "--prefix-cache": prefix_cache,
        "--suffix": suffix,
        "--plugin": plugin,
        "--engine-arg": engine_arg,
        "--max-num-batched-tokens": max_num_batched_tokens,
    }
    if recorded is not None:
        extra = [name for name, value in engine_only.items() if value is not None]
        if extra:
            raise ConfigError(f"{extra[0]} goes with --model; a recorded run says itself what it was made with")
        _recorded(recorded, tolerances, slo, cost_model, pipeline_depth, llm, out, json)
        return
    if llm is not None:
        raise ConfigError("--llm is for recorded public runs; --model names what runs here")
    draft = o.collect(None, None, name="validate", seed=seed, **o.given(locals()))
    o.settle_on_one_run(draft)
    from experiments.replays import AnyOptions, engine_arguments, engine_options
    from experiments.validations import Protocol, validate_here

    more = engine_arguments(engine_arg or ())
    started: dict[str, Any] = {"dtype": dtype, "load_format": load_format, "seed": seed or 0}
    options: AnyOptions
    if engine == "hybrid":
        options = hybrid_options_of(draft, str(model), more, max_num_batched_tokens, **started)
    elif suffix is not None:
        raise ConfigError("--suffix goes with --engine hybrid; vLLM keeps what its KV blocks hold")
    else:
        options = engine_options(draft, str(model), max_num_batched_tokens=max_num_batched_tokens, more=more, **started)
    protocol = Protocol.parse(rho, repeats, promise)
    with TemporaryDirectory() as kept:
        _report(
            validate_here(draft, options, profile, protocol, tolerances, Path(kept)),
            f"Simulated and measured: {model}",
            "engine",
            {"model": str(model), "engine": engine, "tolerances": str(tolerances)},
            out,
            json,
            Path(kept),
        )


def _recorded(
    recorded: list[Path],
    tolerances: Tolerances,
    slo: str | None,
    cost_model: str | None,
    pipeline_depth: int | None,
    llm: str | None,
    out: Path | None,
    json: bool,
) -> None:
    from experiments.folders import check_free
    from gpu_runner.validate.run import recorded_sections
    from sim.objectives import Objectives

    objectives = None if slo is None else Objectives.parse(slo)
    names = ", ".join(folder.name for folder in recorded)
    check_free(out, may_resume=False)
    _report(
        recorded_sections(recorded, tolerances, objectives, cost_model, pipeline_depth, llm, _content),
        f"Simulated and measured: {names}",
        recorded[0].name,
        {"recorded": [str(folder) for folder in recorded], "tolerances": str(tolerances)},
        out,
        json,
    )


def _report(
    found: Iterable[Section],
    title: str,
    name: str,
    where: Mapping[str, Any],
    out: Path | None,
    json: bool,
    kept: Path | None = None,
) -> None:
    """Write the report of sections as they are found, and what was kept beside them; exit 1 for a miss."""
    from experiments import output
    from experiments.folders import check_free, claim
    from experiments.plotting import new_figure
    from gpu_runner.engine import EngineError
    from gpu_runner.validate.report import passed, write_report
    from sim.provenance import provenance

    check_free(out, may_resume=False)
    sections: list[Section] = []
    stopped: BaseException | None = None
    try:
        for section in found:
            sections = [*sections, section]
    except (EngineError, KeyboardInterrupt) as e:
        if not sections:
            raise
        stopped = e

    def fill(folder: Path) -> None:
        if kept is not None:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
        write_report(folder, title, sections, {**provenance(), **where}, new_figure)

    folder = claim(out, f"validate-{name}", fill, may_resume=False)
    missed = [miss for section in sections for miss in section.misses]
    if json:
        document = {"passed": passed(sections), "misses": missed, "sections": [s.to_dict() for s in sections]}
        output.emit({**document, "out": str(folder), "files": sorted(p.name for p in folder.iterdir())})
    else:
        for section in sections:
            output.say("", f"{section.level} {section.title}: {section.summary}")
            for grid in section.tables:
                if grid.caption:
                    output.say("", grid.caption)
                output.table(list(grid.columns), [list(row) for row in grid.rows])
            if section.verbatim:
                output.say(section.verbatim)
        output.say(f"report: {folder / 'report.html'}")
        for miss in missed:
            output.say(f"miss: {miss}")
    if stopped is not None:
        output.warn([f"it ended early, and the report has what was found before: {stopped or 'interrupted'}"])
    if stopped is not None or not passed(sections):
        raise typer.Exit(1)


def _content(info: Mapping[str, Any]) -> Trace | None:
    """Return the trace that a ``run.json`` names, if it can be had and is still the one that was run."""
    from experiments.source import TraceSource
    from traces.schema import TraceError

    try:
        trace = TraceSource(**{**info["trace_source"], "stamp": None}).load(int(info.get("seed") or 0))
    except (KeyError, TypeError, OSError, TraceError):
        return None
    return trace if trace.digest() == info.get("trace_hash") else None
