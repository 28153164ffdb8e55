"""Replays of cells in the real engine or against a live server, and the folders that keep them."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from experiments.cells import Cell, hash_of, jsonable
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.folders import claim, whole_folder
from experiments.hybrids import open_hybrids
from experiments.run import CellResult, check, plugin_errors, run_info, service_classes
from gpu_runner.engine import Engine, EngineOptions, open_engine
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.live import replay_live
from gpu_runner.model import vocabulary
from gpu_runner.openai_client import find_server
from gpu_runner.replay import Sent, paced, replay
from gpu_runner.settings import KEY
from policies.units import ns_from_s
from sim.limits import Limits
from sim.memory import Memory
from sim.metrics import Summary, summarise
from sim.objectives import Objectives
from sim.provenance import provenance
from sim.records import Tables
from sim.stats import warmup_warning
from sim.store import write_run
from sim.window import arrived_between
from traces.schema import Trace

if TYPE_CHECKING:
    from gpu_runner.hybrid.engine import HybridEngine

    AnyEngine = Engine | HybridEngine

AnyOptions = EngineOptions | HybridOptions
"""How an engine starts; they say which engine it is."""

SCHEDULER = "gpu_runner.scheduler.PolicyScheduler"

SMALL_VOCABULARY = 1024
"""Token ids that every model has; for servers whose model's configuration is not at hand."""

CLIENT_LATE_MS = 10.0
"""A client that sends its requests later than this, at P99, measures itself."""


@dataclass(frozen=True)
class Pace:
    """How fast a trace is replayed."""

    speed: float = 1.0
    saturate: bool = False
    """Everything arrives at the start."""
    warm_up_s: float = 0.0
    """Requests that arrive earlier are in the tables, but not in the summary."""
    window_s: float | None = None
    """Nor are those that arrive later than this after the warm-up; they keep the engine busy."""

    def summary(self, tables: Tables, objectives: Objectives) -> Summary:
        """Return the metrics of the requests that arrived in the window."""
        begin = ns_from_s(self.warm_up_s)
        end = None if self.window_s is None else begin + ns_from_s(self.window_s)
        requests, preemptions = arrived_between(tables.requests, tables.preemptions, begin, end)
        return summarise(requests, tables.steps, objectives, preemptions)


@dataclass(frozen=True)
class Replayed:
    """One replay, ready to be kept."""

    label: str
    trace: Trace
    summary: Summary
    warnings: tuple[str, ...]
    sent: Sent
    write: Callable[[Path], None]


def engine_options(draft: Draft, model: str, **given: Any) -> EngineOptions:
    """Return how the engine starts: what the configuration says of it, where it says so, and ``given``.

    Raises:
        ConfigError: if the configuration describes what one engine cannot be.
    """
    config = draft.copy()
    config.take_axes()
    made = config.finish()
    if made.cluster.replicas > 1 or made.hardware.model_fields_set or made.memory.regime == "store":
        raise ConfigError(
            "a replay has one engine on the hardware that is there: leave out replicas, hardware and stores"
        )
    if made.engine.horizon is not None:
        raise ConfigError("a replay ends when its requests have: leave out the horizon, or give fewer --requests")
    depth = made.engine.pipeline_depth == 2 if config.has("engine.pipeline_depth") else None
    return EngineOptions(
        model,
        max_num_seqs=made.engine.max_num_seqs,
        max_model_len=made.engine.max_model_len,
        num_gpu_blocks_override=made.memory.blocks,
        block_size=made.memory.block_size if config.has("memory.block_size") else None,
        enable_prefix_caching=True if made.memory.prefix_cache is None else made.memory.prefix_cache,
        async_scheduling=depth,
        **given,
    )


def engine_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """Read ``NAME=JSON`` texts; what is not JSON is taken as a word.

    Raises:
        ConfigError: if a text has another form.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--engine-arg {text!r} should read NAME=VALUE, like gpu_memory_utilization=0.9")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def replay_cells(
    cells: Sequence[Cell], cost_model: str | None, options: AnyOptions, pace: Pace, batches: bool
) -> Iterator[Replayed]:
    """Replay each cell in an engine of its own, one after the other, and end with the first that is stopped.

    The policy is a parameter of vLLM's start. A second engine in a process starts quickly, has an empty prefix cache,
    and nothing of the one before is left in it.

    Args:
        cells: of one trace.
        cost_model: name or file of what policies believe; ``None``: none was given.
        options: of every engine; the scheduler is added. They say which engine it is.
        pace: of the trace.
        batches: whether to keep every batch.

    Raises:
        ConfigError: if a policy predicts steps and there is no cost model.
        TraceError: if there is no such pace.
        EngineError: if an engine cannot start.
    """
    for cell in cells:
        if cost_model is None and cell.policy.build().needs_predictor:
            raise ConfigError(
                f"policy {cell.label} predicts how long steps of this engine take: give --cost-model, as `prefillsim "
                "profile` and `prefillsim calibrate` make it"
            )
    traces = [paced(cell.source.load(cell.seed), pace.speed, pace.saturate) for cell in cells]
    for (cell, engine), trace in zip(open_replaying(cells, cost_model, options), traces, strict=True):
        replayed = _replay_cell(cell, trace, engine, pace, batches)
        yield replayed
        if replayed.sent.stopped:
            return


def open_replaying(
    cells: Sequence[Cell], cost_model: str | None, options: AnyOptions
) -> Iterator[tuple[Cell, AnyEngine]]:
    """Yield each cell with an engine that runs its policy and records, warmed up, and closed afterwards.

    Raises:
        EngineError: if an engine cannot start.
    """
    if isinstance(options, HybridOptions):
        yield from open_hybrids(cells, cost_model, options)
        return
    options = _with_budget(options, cells)
    for cell in cells:
        settings = {"policy": cell.label, "slo": str(cell.objectives), "record": True, "prometheus": False}
        if cost_model is not None:
            settings["cost_model"] = cost_model
        chosen = dataclasses.replace(options, scheduler_cls=SCHEDULER, additional_config={KEY: settings})
        with open_engine(chosen) as engine:
            engine.warm_up()
            yield cell, engine


def real_memory(engine: AnyEngine) -> tuple[Limits, Memory]:
    """Return an engine's limits and KV memory as the simulator has them."""
    simulated: tuple[Limits, Memory] | None = getattr(engine, "simulated", None)
    if simulated is not None:
        return simulated
    cache = engine.config.cache_config
    depth = int(getattr(getattr(engine, "core", None), "batch_queue_size", 1) or 1)
    limits = Limits(int(engine.config.scheduler_config.max_num_seqs), engine.max_model_len, None, depth)
    memory = Memory(
        blocks=int(cache.num_gpu_blocks),
        block_size=int(cache.block_size),
        prefix_cache=bool(cache.enable_prefix_caching),
    )
    return limits, memory


def _with_budget(options: EngineOptions, cells: Sequence[Cell]) -> EngineOptions:
    """Give all engines the same token budget, enough for each policy's largest step, where that can be known."""
    seqs, length = options.max_num_seqs, options.max_model_len
    if options.max_num_batched_tokens is not None or seqs is None or length is None:
        return options
    chunkings = [cell.policy.build().chunking for cell in cells]
    most = max(c.step_limit(min(c.seat_limit(seqs) or seqs, seqs), length) for c in chunkings)
    return dataclasses.replace(options, max_num_batched_tokens=most)


def _replay_cell(cell: Cell, trace: Trace, engine: AnyEngine, pace: Pace, batches: bool) -> Replayed:
    origin = engine.provenance()
    started = time.perf_counter()
    with _progress(cell.label, len(trace)) as progress:
        came, tables, sent = replay(trace, engine, progress=progress)
    wall_s = time.perf_counter() - started
    limits, memory = real_memory(engine)
    real = dataclasses.replace(cell, limits=limits, memory=memory)
    summary = pace.summary(tables, cell.objectives)
    warnings = [_refusals(tables, len(came)), _fell_back(engine, cell), warmup_warning(tables.requests)]
    told = tuple(w for w in warnings if w is not None)
    host = "vllm" if getattr(engine, "simulated", None) is None else "hybrid"
    info = _info(real, host, CellResult(real.key, summary, told), sent, pace, wall_s)
    info["engine"] = origin

    def write(folder: Path) -> None:
        write_run(folder, came, tables, info, summary=summary, batches=batches)

    return Replayed(cell.label, came, summary, told, sent, write)


def replay_server(cell: Cell, url: str, model: str | None, api_key: str | None, pace: Pace) -> Replayed:
    """Replay a cell's trace against a live server; its policy is what the server is said to run.

    Raises:
        ServerError: if there is no such server.
    """
    folder = None if model is None else vocabulary(model)
    server = find_server(url, model, api_key)
    trace = paced(cell.source.load(cell.seed), pace.speed, pace.saturate)
    started = time.perf_counter()
    with _progress(f"{cell.source.label} to {url}", len(trace)) as progress:
        run, sent = replay_live(
            trace, server, folder or vocabulary(server.model) or SMALL_VOCABULARY, progress=progress
        )
    wall_s = time.perf_counter() - started
    came = trace.limit(sent.count)
    summary = run.summary(cell.objectives)
    late = sent.facts()["late_p99_ms"]
    warnings = [
        _refusals(run, len(came)),
        f"the client itself was late by {late:.1f} ms at P99: its machine is too busy to measure with"
        if late is not None and late > CLIENT_LATE_MS and not pace.saturate
        else None,
    ]
    told = tuple(w for w in warnings if w is not None)
    info = _info(cell, "server", CellResult(cell.key, summary, told), sent, pace, wall_s)
    info["server"] = {"url": url, "model": server.model, "max_model_len": server.max_model_len}

    def write(folder: Path) -> None:
        write_run(folder, came, run, info, summary=summary)
        run.write_tokens(folder, came)

    return Replayed(cell.label, came, summary, told, sent, write)


def keep(replays: Iterator[Replayed], out: Path | None, stem: str, several: bool) -> Iterator[tuple[Replayed, Path]]:
    """Write each replay as soon as it is done: into the results folder, or where there are several, folders in it.

    Raises:
        ConfigError: if ``out`` exists and is not empty.
        OSError: if a folder cannot be written.
    """
    base: Path | None = None
    for replayed in replays:
        name = re.sub(r"[^A-Za-z0-9.+=-]+", "_", replayed.label)
        if base is None:
            write = replayed.write
            base = claim(out, stem, (lambda part, n=name, w=write: w(part / n)) if several else write, may_resume=False)  # type: ignore[misc]
        else:
            with whole_folder(base / name) as part:
                replayed.write(part)
        yield replayed, base / name if several else base


def check_policies(cells: Sequence[Cell]) -> None:
    """Refuse, before an engine is started, policies that cannot work with the trace's objectives.

    Raises:
        PolicyError: in one sentence, of the first.
    """
    for cell in cells:
        trace = cell.source.load(cell.seed)
        with plugin_errors(cell):
            check(cell.policy.build(), service_classes(trace, cell.objectives), cell)


def _info(cell: Cell, host: str, result: CellResult, sent: Sent, pace: Pace, wall_s: float) -> dict[str, Any]:
    info = run_info(cell, result, {**provenance(), "host": host}, wall_s)
    info["key"] = hash_of({"host": host, "pace": dataclasses.asdict(pace), **info["resolved"]})
    info["replay"] = jsonable({**dataclasses.asdict(pace), **sent.facts()})
    return info


def _refusals(tables: Tables, requests: int) -> str | None:
    if not tables.reasons:
        return None
    first = tables.reasons[min(tables.reasons)]
    return f"{len(tables.reasons)} of {requests} requests were not served whole; the first: {first}"


def _fell_back(engine: AnyEngine, cell: Cell) -> str | None:
    if not getattr(engine.scheduler, "fallen", False):
        return None
    return f"policy {cell.label} failed during the run, and first come, first served took its place"


@contextmanager
def _progress(label: str, n: int) -> Iterator[Callable[[int, int], None]]:
    """Show how many requests have finished, on stderr where that is a terminal."""
    with tqdm(total=n, desc=label, unit="req", file=sys.stderr, disable=None, leave=False) as bar:

        def told(sent: int, finished: int) -> None:
            if finished > bar.n:
                bar.set_postfix_str(f"{sent} sent", refresh=False)
                bar.update(finished - bar.n)

        yield told
