"""One cell: trace, policy, cost model, simulation, metrics, and the folder that keeps them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from costmodels.base import CostModelError
from costmodels.files import read_bounded
from experiments.cells import Cell, json_bytes, jsonable, require_plugins
from experiments.config import ConfigError
from experiments.folders import whole_folder
from policies.base import Policy, PolicyError
from policies.registry import KINDS, find
from policies.views import ServiceClass
from sim.cluster import simulate_cluster
from sim.engine import simulate
from sim.metrics import Summary, summarise
from sim.objectives import Objectives
from sim.provenance import cost_model_hash
from sim.records import Tables
from sim.routers import ClusterError
from sim.stats import warmup_warning
from sim.store import RUN, SUMMARY, StoreError, atomic_write, read_run, write_run
from sim.views import own_or_default
from traces.schema import Trace, TraceError


@dataclass(frozen=True)
class CellResult:
    """What a cell came to: a summary, or the error that kept it from one."""

    key: str
    summary: Summary | None
    warnings: tuple[str, ...] = ()
    error: str | None = None


USER_ERRORS = (TraceError, PolicyError, CostModelError, ConfigError)
"""What the configuration of one cell can be blamed for."""


def service_classes(trace: Trace, objectives: Objectives) -> set[ServiceClass]:
    """Return the different objectives and tenants of a trace's requests, ``objectives`` where they have none."""
    columns = (
        own_or_default(trace.slo_ttft_ns, objectives.ttft),
        own_or_default(trace.slo_tpot_ns, objectives.deadline_ns),
        repeat(None) if trace.tenant is None else trace.tenant.tolist(),
    )
    differ = any(c is not None for c in (trace.slo_ttft_ns, trace.slo_tpot_ns, trace.tenant))
    requests = range(len(trace) if differ else min(len(trace), 1))
    return {ServiceClass(*values) for _, *values in zip(requests, *columns, strict=False)}


def prepare(cell: Cell) -> tuple[Trace, Policy]:
    """Return a cell's trace and policy, ready to simulate.

    Raises:
        TraceError, PolicyError: if they cannot be made or do not work together.
    """
    require_plugins(cell.plugins)
    trace = cell.source.load(cell.seed)
    if cell.source.facts(cell.seed).digest != cell.digest:
        raise TraceError(f"trace {cell.source.label} changed during the run; start again")
    check_decoding(cell)
    with plugin_errors(cell):
        policy = cell.policy.build()
        check(policy, service_classes(trace, cell.objectives), cell)
    return trace, policy


@contextmanager
def plugin_errors(cell: Cell) -> Iterator[None]:
    """Turn errors that the cell's plug-ins cause into a user's errors, and send what they print to stderr.

    Raises:
        PolicyError: naming file and line.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (*USER_ERRORS, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as e:  # SystemExit and what asyncio raises among them
        file, line = place_of(e)
        what = _named(e)
        plugins = {Path(plugin.path).resolve() for plugin in cell.plugins}
        if Path(file) in plugins:
            raise PolicyError(f"policy {cell.label} failed in {file}, line {line}: {what}") from e
        if used := plugins & {_file_of(kind, cell) for kind in KINDS}:
            raise PolicyError(
                f"policy {cell.label} gave an answer that stopped the simulator ({file}, line {line}: {what}); "
                f"`prefillsim policies check {min(used)}` tells which"
            ) from e
        raise


def _file_of(kind: str, cell: Cell) -> Path | None:
    part = getattr(cell.policy, kind)
    return None if part is None else Path(str(sys.modules[find(kind, part.name).__module__].__file__))


def check(policy: Policy, classes: Collection[ServiceClass], cell: Cell) -> None:
    """Refuse, before a run, a policy that cannot work under the cell's objectives and limits.

    Raises:
        PolicyError: in one sentence.
    """
    predictor = cell.predictor or cell.cost
    try:
        policy.reset(predictor)
        policy.chunking.seat_limit(cell.limits.max_num_seqs)
        policy.check_objectives(classes, predictor)
    except PolicyError as e:
        raise PolicyError(f"policy {cell.label}: {e}") from None


def _has_store(cell: Cell) -> bool:
    return cell.memory is not None and cell.memory.regime == "store"


def check_decoding(cell: Cell) -> None:
    """Refuse requests that decode where only prefilling is simulated, and a second step in flight where there is one.

    Raises:
        PolicyError: in one sentence.
    """
    if cell.limits.pipeline_depth > 1 and (len(cell.cost.stages()) > 1 or _has_store(cell)):
        raise PolicyError("--pipeline-depth 2 goes with --memory pool and one pipeline stage only")
    if cell.prefill_only:
        return
    has = f"but a request of {cell.source.label} has {cell.facts.longest_output}"
    if len(cell.cost.stages()) > 1:
        raise PolicyError(f"pipeline parallelism is simulated for requests with one output token, {has}")
    if _has_store(cell):
        raise PolicyError(
            f"a store holds no KV to decode with, so requests have one output token, {has}; use --memory pool"
        )


def check_cells(cells: Iterable[Cell]) -> None:
    """Refuse, before any run, policies that cannot work under the objectives and limits of their cells.

    Raises:
        PolicyError: in one sentence, of the first.
    """
    checked = set()
    for cell in cells:
        # Seeds change arrivals and lengths, not the classes of service.
        kind = (cell.source, cell.policy.label, cell.point)
        if kind not in checked:
            checked.add(kind)
            prepare(cell)


def simulate_cell(cell: Cell) -> tuple[Trace, Tables, CellResult]:
    """Run a cell and measure it; nothing is written.

    Raises:
        TraceError, PolicyError, CostModelError: if it cannot run.
    """
    trace, policy = prepare(cell)
    with plugin_errors(cell):
        tables = _tables(trace, policy, cell)
    summary = summarise(tables.requests, tables.steps, cell.objectives, tables.preemptions, cell.energy)
    warnings = tuple(filter(None, (_refusals(cell, tables), warmup_warning(tables.requests))))
    return trace, tables, CellResult(cell.key, summary, warnings)


def _refusals(cell: Cell, tables: Tables) -> str | None:
    """Return how many requests memory or limits have turned away; an admission policy does so on purpose."""
    if cell.memory is None or cell.policy.admission is not None or not tables.reasons:
        return None
    first = tables.reasons[min(tables.reasons)]
    return f"{len(tables.reasons)} of {cell.requests} requests were rejected; the first: {first}"


def _tables(trace: Trace, policy: Policy, cell: Cell) -> Tables:
    shared: dict[str, Any] = {"predictor": cell.predictor, "objectives": cell.objectives, "limits": cell.limits}
    replicas = cell.cluster.replicas
    if replicas == 1:
        cache = None if cell.memory is None else cell.memory.build(trace)
        return simulate(trace, policy, cell.cost, cache=cache, **shared)
    policies = [policy, *(cell.policy.build() for _ in range(1, replicas))]
    try:
        return simulate_cluster(trace, policies, cell.cost, router=cell.cluster.router, memory=cell.memory, **shared)
    except ClusterError as e:
        raise ConfigError(str(e)) from None


def place_of(error: BaseException) -> tuple[str, int]:
    """Return the file and line in which an error was raised, seen through SimPy, which raises it anew."""
    while error.__cause__ is not None:
        error = error.__cause__
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename, last.lineno or 0


def _named(error: BaseException) -> str:
    """Return an error's type, and what it says if it says anything."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class _Failed(Exception):
    """A cell cannot run; the message says why."""


def run_cell(cell: Cell, folder: Path, shared: dict[str, Any], *, owner: str | None = None) -> CellResult:
    """Run a cell and write its folder, all of it or nothing.

    Args:
        cell: what to run.
        folder: made by this call; what another process has made there meanwhile is as good.
        shared: provenance that all cells of an experiment share.
        owner: see :func:`experiments.folders.whole_folder`.

    Returns:
        The summary, or the error of a cell that cannot run.

    Raises:
        OSError: if the folder cannot be written, as when the disk is full.
    """
    try:
        # Begun before the simulation, so that it is known what a process was doing when it was killed.
        with whole_folder(folder, owner) as part:
            return _run_into(part, cell, shared)
    except _Failed as e:
        return CellResult(cell.key, None, error=str(e))
    except FileExistsError:
        stored = stored_result(cell, folder)
        if stored is None:
            raise
        return stored


def _run_into(part: Path, cell: Cell, shared: dict[str, Any]) -> CellResult:
    started = time.perf_counter()
    try:
        trace, tables, result = simulate_cell(cell)
    except USER_ERRORS as e:
        raise _Failed(str(e)) from e
    except Exception as e:
        # One cell must not end a sweep, whatever is wrong with it; where it happened helps to find out.
        file, line = place_of(e)
        raise _Failed(f"{_named(e)} ({file}, line {line})") from e
    info = run_info(cell, result, shared, time.perf_counter() - started)
    store(part, cell, trace, tables, result, info)
    return result


def store(
    folder: Path,
    cell: Cell,
    trace: Trace,
    tables: Tables,
    result: CellResult,
    info: dict[str, Any],
    batches: bool = False,
) -> None:
    """Write what the cell keeps; ``run.json`` comes last, so a folder with it is complete.

    Raises:
        OSError: if it cannot be written.
    """
    if cell.keep == "records":
        write_run(folder, trace, tables, info, summary=result.summary, batches=batches)
        return
    summary = json_bytes(result.summary)
    atomic_write(folder / SUMMARY, summary)
    atomic_write(folder / RUN, json_bytes({**info, "files": {SUMMARY: hashlib.sha256(summary).hexdigest()}}))


def stored_result(cell: Cell, folder: Path) -> CellResult | None:
    """Return the result of an earlier run of this very cell, ``None`` unless all of its files are as they were written.

    Each has its checksum in ``run.json``.
    """
    try:
        content = (folder / SUMMARY).read_bytes()
        info = json.loads(read_bounded(folder / RUN))
        if info["key"] != cell.key or info["files"][SUMMARY] != hashlib.sha256(content).hexdigest():
            return None
        if cell.keep == "records":
            read_run(folder)
        return CellResult(cell.key, json.loads(content), tuple(info["warnings"]))
    except (StoreError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def run_info(cell: Cell, result: CellResult, shared: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """Return what ``run.json`` says: the resolved configuration, where it was run, and the summary's warnings."""
    described: dict[str, Any] = jsonable(
        {
            **shared,
            "key": cell.key,
            "policy": cell.label,
            "seed": cell.seed,
            "point": dict(cell.point),
            "trace_source": {k: v for k, v in dataclasses.asdict(cell.source).items() if k != "stamp"},
            "trace_hash": cell.digest,
            "cost_model_hash": cost_model_hash(cell.cost),
            "resolved": cell.resolved(),
            "warnings": result.warnings,
            "wall_s": round(wall_s, 4),
        }
    )
    return described
