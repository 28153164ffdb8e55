"""``prefillsim profile``: how long the steps of a real engine take."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import options as o

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_runner.profile import Outcome
    from gpu_runner.profiling.bench import Bench
    from gpu_runner.profiling.grid import Axes

GRID, ENGINE = "Grid", "Engine"


def _levels(option: str, what: str) -> Any:
    text = f"{what}; in place of the grid's."
    return typer.Option(option, metavar="N,...", help=text, rich_help_panel=GRID)


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    model: Annotated[str, typer.Option("--model", metavar="DIR|NAME", help="The model.", rich_help_panel=ENGINE)],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE.parquet", help="The table, with a journal beside it.", rich_help_panel=o.OUTPUT
        ),
    ],
    grid: Annotated[
        str, typer.Option("--grid", metavar="NAME", help="small, default or full.", rich_help_panel=GRID)
    ] = "default",
    decodes: Annotated[str | None, _levels("--decodes", "Decodes in a step, 0 for steps without")] = None,
    decode_contexts: Annotated[str | None, _levels("--decode-contexts", "Tokens that each decode holds")] = None,
    prefill_tokens: Annotated[str | None, _levels("--prefill-tokens", "Prompt tokens, 0 for steps without")] = None,
    prefill_contexts: Annotated[str | None, _levels("--prefill-contexts", "Tokens that a prompt has already")] = None,
    prompts: Annotated[str | None, _levels("--prompts", "Prompts that share those tokens")] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="N", help="Of each step.", rich_help_panel=GRID)
    ] = 5,
    max_minutes: Annotated[
        float | None,
        typer.Option("--max-minutes", min=0, metavar="M", help="Start no step later.", rich_help_panel=GRID),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="vllm, or hybrid: prefills only.", rich_help_panel=ENGINE)
    ] = "vllm",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="TYPE", help="Of weights and KV.", rich_help_panel=ENGINE)
    ] = "auto",
    load_format: Annotated[
        str,
        typer.Option(
            "--load-format", metavar="NAME", help="dummy: random weights, none are read.", rich_help_panel=ENGINE
        ),
    ] = "auto",
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option("--max-num-batched-tokens", min=1, metavar="N", help="In a step.", rich_help_panel=ENGINE),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", min=1, metavar="N", help="At once.", rich_help_panel=ENGINE)
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=1, metavar="N", help="Tokens of a request.", rich_help_panel=ENGINE),
    ] = None,
    kv_blocks: Annotated[
        int | None,
        typer.Option("--kv-blocks", min=2, metavar="N", help="Not what fits memory.", rich_help_panel=ENGINE),
    ] = None,
    kv_block_size: Annotated[
        int | None,
        typer.Option("--kv-block-size", min=1, metavar="N", help="Tokens of a KV block.", rich_help_panel=ENGINE),
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option("--engine-arg", metavar="NAME=JSON", help="Any other of its own.", rich_help_panel=ENGINE),
    ] = None,
    seed: o.Seed = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the journal beside the table.", rich_help_panel=o.OUTPUT),
    ] = False,
    json: o.Json = False,
) -> None:
    """Measure the steps of an engine over a grid, for prefillsim calibrate.

    Decodes with their context, prompts with theirs, and both together; each step runs exactly as wanted, in rounds of
    random order, alone on the machine. Every step is written down at once.
    """
    from experiments import output
    from experiments.config import ConfigError
    from experiments.hybrids import ENGINES, hybrid_options
    from experiments.replays import engine_arguments
    from gpu_runner.engine import EngineOptions
    from policies.registry import nearest

    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}{nearest(engine, ENGINES)} ({', '.join(ENGINES)})")
    journal = out.with_suffix(".journal.jsonl")
    _check_files(out, journal, resume)
    levels = {
        "decodes": decodes,
        "decode_contexts": decode_contexts,
        "prefill_tokens": prefill_tokens,
        "prefill_contexts": prefill_contexts,
        "prompts": prompts,
    }
    chosen = {axis: _numbers("--" + axis.replace("_", "-"), text) for axis, text in levels.items() if text is not None}
    _check_grid(grid, chosen)
    if engine == "hybrid":
        opened = _open_hybrid(
            hybrid_options(
                model,
                engine_arguments(engine_arg or ()),
                {"--max-num-batched-tokens": max_num_batched_tokens, "--max-num-seqs": max_num_seqs},
                dtype=dtype,
                load_format=load_format,
                max_model_len=max_model_len,
                blocks=kv_blocks,
                block_size=kv_block_size or 16,
                seed=seed or 0,
            ),
            grid,
            seed or 0,
        )
    else:
        opened = _open_vllm(
            EngineOptions(
                model=model,
                dtype=dtype,
                load_format=load_format,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                num_gpu_blocks_override=kv_blocks,
                block_size=kv_block_size,
                enable_prefix_caching=True,
                async_scheduling=False,
                more=engine_arguments(engine_arg or ()),
            ),
            grid,
            seed or 0,
        )
    outcome = _measure(
        opened,
        chosen,
        out,
        journal,
        repeats=repeats,
        seed=seed or 0,
        max_s=None if max_minutes is None else 60 * max_minutes,
        show=not json and sys.stderr.isatty(),
    )
    if json:
        output.emit(
            {
                "out": str(out),
                "journal": str(journal),
                "rows": len(outcome.profile),
                "incomplete_cells": outcome.incomplete,
                "skipped": {str(cell): why for cell, why in outcome.skipped.items()},
                "quality": outcome.quality.to_dict(),
                "energy": outcome.profile.provenance["energy"],
                "warnings": list(outcome.profile.warnings),
            }
        )
        return
    _tell(outcome, out, journal)


Opened = tuple["Bench", "Axes", str, "Callable[[], None]"]
"""Bench, axes, where energy is from, and what warms up."""


@contextmanager
def _open_vllm(options: Any, grid: str, seed: int) -> Iterator[Opened]:
    from gpu_runner.engine import open_engine
    from gpu_runner.nvml import open_meter
    from gpu_runner.profiling.grid import preset
    from gpu_runner.profiling.stepped import SteppedBench
    from gpu_runner.profiling.vllm_steps import VllmSteps

    with open_engine(options) as engine:
        steps = VllmSteps(engine)
        meter, energy = open_meter(steps.gpus)
        bench = SteppedBench(steps, engine.vocab, meter, seed)
        yield bench, preset(grid, bench.capacity), energy, engine.warm_up


@contextmanager
def _open_hybrid(options: Any, grid: str, seed: int) -> Iterator[Opened]:
    from gpu_runner.hybrid.bench import HybridBench, prefill_axes
    from gpu_runner.hybrid.options import open_hybrid
    from gpu_runner.nvml import open_meter
    from gpu_runner.settings import Settings

    with open_hybrid(options, Settings(policy="fcfs+full")) as engine:
        meter, energy = open_meter(engine.gpus)
        bench = HybridBench(engine, meter, seed)
        yield bench, prefill_axes(grid, bench.capacity), energy, engine.warm_up


def _measure(
    opened: AbstractContextManager[Opened],
    chosen: dict[str, tuple[int, ...]],
    out: Path,
    journal: Path,
    *,
    repeats: int,
    seed: int,
    max_s: float | None,
    show: bool,
) -> Outcome:
    from datetime import UTC, datetime

    from experiments.cells import package_version
    from gpu_runner.profile import Plan, run_profile

    with opened as (bench, preset_axes, energy, warm_up):
        axes = replace(preset_axes, **chosen)
        plan = Plan.of(bench, axes.cells(bench.capacity.block_size), repeats, seed)
        warm_up()
        about = {
            "source": f"measured by prefillsim {package_version()}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["prefillsim", *sys.argv[1:]]),
            "energy": energy,
            "grid": _as_lists(axes),
        }
        return run_profile(bench, plan, out, journal, about, max_s=max_s, progress=_bar if show else None)


def _as_lists(axes: Axes) -> dict[str, list[int]]:
    return {name: list(getattr(axes, name)) for name in axes.__dataclass_fields__}


def _bar(total: int, label: str) -> Any:
    from tqdm import tqdm

    bar = tqdm(total=total, desc=label, unit="step", file=sys.stderr, dynamic_ncols=True, leave=False)

    def tick(n: int) -> None:
        bar.update(n)
        if bar.n >= total:
            bar.close()

    return tick


def _check_files(out: Path, journal: Path, resume: bool) -> None:
    from experiments.config import ConfigError

    if out.suffix != ".parquet":
        raise ConfigError(f"--out {out} must end in .parquet")
    if resume and not journal.exists():
        raise ConfigError(f"there is no {journal} to go on with; leave out --resume")
    if not resume:
        for file in (out, journal):
            if file.exists():
                raise ConfigError(f"{file} exists; give a new file, or --resume to go on")
    out.parent.mkdir(parents=True, exist_ok=True)


def _check_grid(grid: str, chosen: dict[str, tuple[int, ...]]) -> None:
    """Refuse what is wrong whatever the engine can hold, before it is started."""
    from gpu_runner.profiling.grid import Capacity, preset

    replace(preset(grid, Capacity(256, 8192, 8192, 10_000, 16)), **chosen)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from experiments.config import ConfigError

    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"{option} {text} is not a list of whole numbers, like 1,8,64") from None


def _tell(outcome: Outcome, out: Path, journal: Path) -> None:
    from experiments import output

    quality = outcome.quality
    told = [f"{len(outcome.profile)} steps of {outcome.profile.shape.max() + 1} shapes"]
    if quality.spread is not None:
        told.append(f"repeats spread by {quality.spread:.1%}")
    if quality.drift is not None:
        told.append(f"the first {quality.drift_cells} cells took {quality.drift:+.1%} at the end")
    output.say("; ".join(told))
    by_reason: dict[str, list[str]] = {}
    for cell, why in outcome.skipped.items():
        by_reason.setdefault(why, []).append(str(cell))
    for why, cells in by_reason.items():
        output.say(f"skipped {len(cells)}, {why}: {cells[0]}" + (f" to {cells[-1]}" if len(cells) > 1 else ""))
    if outcome.incomplete:
        output.say(f"{outcome.incomplete} cells have fewer repeats than asked for; --resume goes on")
    output.say(str(outcome.profile.provenance["energy"]), f"profile: {out}", f"journal: {journal}")
    output.warn(outcome.profile.warnings)
