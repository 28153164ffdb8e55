"""``prefillsim trace``: make traces, describe, check and convert them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import options as o

if TYPE_CHECKING:
    from traces.schema import Trace

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace in any known format.")]
OutFile = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FILE|DIR", help="A new .parquet (lossless) or .jsonl (timed-trace) file, or a folder for one."
    ),
]
ConvertOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE|DIR", help="A new .parquet or .jsonl file, or a folder for one.")
]
To = Annotated[str | None, typer.Option("--to", help="parquet or timed-trace; by default what the suffix says.")]
ToBlock = Annotated[
    int | None, typer.Option("--to-block-size", metavar="N", help="Tokens per hash id of a written timed-trace.")
]


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Make, describe, check and convert traces.", no_args_is_help=True)
    group.command("generate")(generate)
    group.command("info")(info)
    group.command("lint")(lint)
    group.command("convert")(convert)
    app.add_typer(group, name="trace")


def generate(
    workload: Annotated[str, typer.Option("--workload", metavar="NAME", help="A synthetic workload.")],
    out: OutFile,
    limit: o.Limit = None,
    rate: o.Rate = None,
    rate_scale: o.RateScale = None,
    seed: o.Seed = 0,
    to: To = None,
    to_block_size: ToBlock = None,
    json: o.Json = False,
) -> None:
    """Write a synthetic workload to a file."""
    made = _load(seed, workload=workload, limit=limit, rate=rate, rate_scale=rate_scale)
    _write(made, out, to, to_block_size, json)


def info(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A trace in any known format.")] = None,
    workload: o.Workload = None,
    limit: o.Limit = None,
    rate: o.Rate = None,
    rate_scale: o.RateScale = None,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    seed: o.Seed = 0,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Describe a trace: rows, duration, rate, burstiness, lengths, ideal prefix hit rate."""
    trace = _load(
        seed,
        workload=workload,
        trace=None if file is None else str(file),
        limit=limit,
        rate=rate,
        rate_scale=rate_scale,
        trace_format=trace_format,
        block_size=block_size,
    )
    from experiments import output
    from traces.describe import describe

    figures = describe(trace)
    output.keep(out, "trace-info", figures)
    if json:
        output.emit(figures)
        return
    warnings = figures.pop("warnings")
    rows = [[key, _shown(key, value)] for key, value in _flat(figures)]
    output.table(["figure", "value"], rows)
    output.warn(warnings)


def lint(
    file: File,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    seed: o.NoSeed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Check a trace line by line; exit status 2 if it has errors, as wherever a bad file is given."""
    from experiments import output
    from traces.lint import lint_trace

    report = lint_trace(file, fmt=trace_format, block_size=block_size)
    problems = [
        {"line": p.line, "column": p.column, "severity": p.severity, "message": p.message} for p in report.problems
    ]
    document = {"file": str(file), "ok": report.ok, "format": report.format, "rows": report.rows, "problems": problems}
    output.keep(out, "trace-lint", document)
    if json:
        output.emit(document)
    else:
        output.say(*(f"{p.severity}: {p.sentence(str(file))}" for p in report.problems))
        verdict = "no errors" if report.ok else "not readable"
        output.say(f"{file}: {verdict}, {report.rows} rows, format {report.format or 'unknown'}")
    if not report.ok:
        raise typer.Exit(2)


def convert(
    file: File,
    target: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="The same as --out.")] = None,
    limit: o.Limit = None,
    rate: o.Rate = None,
    rate_scale: o.RateScale = None,
    trace_format: o.Format = None,
    block_size: o.BlockSize = None,
    seed: o.Seed = 0,
    out: ConvertOut = None,
    to: To = None,
    to_block_size: ToBlock = None,
    json: o.Json = False,
) -> None:
    """Convert a trace to our parquet or to vLLM's timed-trace."""
    if (target is None) == (out is None):
        from experiments.config import ConfigError

        raise ConfigError("give the file to write once: as OUT or as --out")
    trace = _load(
        seed,
        trace=str(file),
        limit=limit,
        rate=rate,
        rate_scale=rate_scale,
        trace_format=trace_format,
        block_size=block_size,
    )
    _write(trace, target or out or Path(), to, to_block_size, json)


def _load(seed: int | None, **options: Any) -> Trace:
    draft = o.collect(None, None, name="trace", **options)
    from experiments.source import TraceSource

    return TraceSource.of(draft.finish().trace).load(seed or 0)


def _write(trace: Trace, out: Path, to: str | None, block_size: int | None, json: bool) -> None:
    from experiments import output
    from experiments.config import ConfigError
    from traces.io import WRITABLE, check_writable, write_trace

    is_folder = out.is_dir() or not out.suffix
    if is_folder:
        out /= re.sub(r"[^\w.-]+", "-", trace.name) + WRITABLE.get(to or "parquet", "")
    if out.exists():
        raise ConfigError(f"{out} exists; give a new file")
    fmt = check_writable(out, to, block_size)
    if is_folder:
        out.parent.mkdir(parents=True, exist_ok=True)
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is not a folder, so {out.name} cannot be written there")
    write_trace(trace, out, fmt=to, block_size=block_size)
    warnings = [*trace.warnings, *_left_out(trace, fmt)]
    if json:
        output.emit({"out": str(out), "requests": len(trace), "hash": trace.digest(), "warnings": warnings})
        return
    output.say(f"{len(trace)} requests: {out}")
    output.warn(warnings)


def _left_out(trace: Trace, fmt: str) -> list[str]:
    columns = ("session", "tenant", "slo_ttft_ns", "slo_tpot_ns")
    lost = [c for c in columns if fmt == "timed-trace" and getattr(trace, c) is not None]
    return [f"a timed-trace has no column for {', '.join(lost)}; not written"] if lost else []


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in figures.items():
        rows += _flat(value, f"{prefix}{key} ") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


def _shown(key: str, value: Any) -> str:
    from experiments.output import number

    if key == "ideal_prefix_hit_rate" and value is not None:
        return f"{100 * value:.1f} %"
    if value is None or isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
