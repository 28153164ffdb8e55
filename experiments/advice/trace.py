"""What there is to advise on: the trace as it is, the rate that it should be served at, and what a replica is."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodels.calibrated import RangeWarning
from costmodels.hardware import gpu_names, llm_names
from costmodels.io import load_card
from experiments.axes import PER_CELL, plan
from experiments.bounds import work_ns
from experiments.capacity.search import LEAST_SEEDS
from experiments.cells import Cell
from experiments.config import Config, ConfigError
from experiments.draft import Draft
from experiments.source import TraceSource
from policies.units import FOREVER_NS, NS
from sim.objectives import Objectives
from sim.views import own_or_default
from traces.describe import ideal_prefix_hit_rate
from traces.schema import Trace

NAME = "advise"

LIMIT = 1000
"""Requests of a file that are taken, by default: the first."""

SEEDS = 10
"""Fresh seeds, by default."""

SEATS = 256
"""Most requests at once in a replica, by default: vLLM's own limit on most machines."""

VISIBLE = 0.02
"""Prompts share their beginnings where an unlimited prefix cache would have found this share of them."""


@dataclass(frozen=True)
class Look:
    """A trace in what decides which policies are worth trying."""

    requests: int
    in_file: int
    """How many the file has."""
    own_rate: float | None
    """Requests per second of the file's own arrivals; ``None`` where it has none."""
    rate: float
    """Requests per second that are asked about."""
    prompt_mean: float
    prompt_max: int
    output_mean: float
    longest: int
    """Prompt and output tokens of the longest request in the file."""
    longest_taken: int
    """The same of the requests taken."""
    prefill_only: bool
    shared: float
    """Share of the prompts' content that an unlimited prefix cache would have had."""
    cached: bool
    """Whether replicas have a prefix cache."""
    sessions: bool
    """Whether some requests belong to the same session."""
    has_ttft: bool
    has_tpot: bool
    several_ttft: bool
    """Whether requests differ in their TTFT objectives."""
    busy: float
    """Replicas that prefilling keeps busy at the rate, each prompt alone and nothing of it cached."""
    hopeless: float
    """Share of requests that miss an objective even alone on an idle replica, nothing of them cached."""

    @property
    def sharing(self) -> bool:
        """Whether prompts share beginnings that a replica could keep."""
        return self.cached and self.shared >= VISIBLE

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Task:
    """What is to be advised on."""

    draft: Draft
    """Of every run, but for policies, seeds and replicas."""
    look: Look
    cell: Cell
    """A run of vLLM's default on one replica, for what all runs share."""
    config: Config
    seeds: tuple[int, ...]
    """The fresh ones."""
    extra: tuple[str, ...]
    """Policies of the user's own choice."""
    replicas: int | None
    """Their number, where the user has fixed it."""
    router: str | None
    """The user's choice."""
    memory_from: str | None
    """The cost model whose card the KV memory follows from, where nothing else says it."""
    own: Draft | None
    """Runs on the file's own arrivals, brought to the rate; ``None`` where there are none."""

    @property
    def denser(self) -> float:
        """How many times as dense as the file's own arrivals the rate is; 1 where there are none."""
        return 1.0 if self.look.own_rate is None else self.look.rate / self.look.own_rate


def task_of(draft: Draft) -> Task:
    """Complete a draft, look at its trace and take what is fixed out of it.

    Raises:
        ConfigError: if there are axes or no objectives, the trace has no rate, or the seeds are too few to tell.
        ConfigError, PolicyError, CostModelError, TraceError, ObjectiveError: see :func:`experiments.axes.plan`.
    """
    draft = _flat(draft)
    config = draft.finish()
    extra, replicas = config.policies, config.cluster.replicas if draft.has("cluster.replicas") else None
    router = config.cluster.router if draft.has("cluster.router") else None
    if len(config.seeds) < LEAST_SEEDS:
        raise ConfigError(
            f"{draft.origin('seeds')}: so few seeds tell nothing for sure; give at least {LEAST_SEEDS}, better {SEEDS}"
        )
    if config.trace.file is not None and config.trace.limit is None:
        draft.put("trace.limit", LIMIT, "default")
    memory_from = _memory_of_card(draft, config)
    _engine_defaults(draft, draft.finish())
    draft.put("policies", ["vllm-default"], NAME, NAME)
    draft.put("seeds", list(config.seeds[:1]), NAME, NAME)
    draft.put("cluster.replicas", 1, NAME, NAME)
    cell = plan(draft).cells[0]
    trace = cell.source.load(cell.seed)
    if cell.objectives == Objectives() and trace.slo_ttft_ns is None and trace.slo_tpot_ns is None:
        raise ConfigError("advise needs objectives, like --slo ttft:1000,tpot_p99:25")
    rate, own_rate, own = _rates(draft, cell.source, trace)
    cell = plan(draft).cells[0]
    look = _look(cell, rate, own_rate)
    return Task(draft, look, cell, draft.finish(), config.seeds, extra, replicas, router, memory_from, own)


def _flat(draft: Draft) -> Draft:
    draft = draft.copy()
    taken = draft.take_axes()
    for axis in PER_CELL:
        if axis in taken:
            draft.put(axis, *taken.pop(axis))
    if taken:
        raise ConfigError(f"advise finds out what to vary, but [sweep] has {', '.join(taken)}")
    if not draft.has("seeds"):
        draft.put("seeds", SEEDS, "default")
    draft.put("keep", "summary", NAME)
    return draft


def _memory_of_card(draft: Draft, config: Config) -> str | None:
    """Let KV memory follow from the GPU and the model that the cost model is of, where nothing says what there is."""
    if config.hardware.model_fields_set or config.memory.model_fields_set:
        return None
    card = load_card(config.cost_model)
    gpu, llm = str(card.get("device", "")).removesuffix(" (estimated)"), card.get("model")
    if gpu not in gpu_names() or llm not in llm_names():
        return None
    draft.put("hardware.gpu", gpu, "the cost model's card")
    draft.put("hardware.llm", llm, "the cost model's card")
    draft.put("hardware.tp", int(card.get("tensor_parallel", 1)), "the cost model's card")
    return config.cost_model


def _engine_defaults(draft: Draft, config: Config) -> None:
    """Be like vLLM where the user has not said otherwise: so many seats, and two steps in flight."""
    if config.engine.max_num_seqs is None:
        draft.put("engine.max_num_seqs", SEATS, "default")
    store = config.memory.regime == "store" or config.hardware.mode not in ("paged", "chunked")
    if not draft.has("engine.pipeline_depth") and not store and config.hardware.pp == 1:
        draft.put("engine.pipeline_depth", 2, "default")


def _rates(draft: Draft, source: TraceSource, trace: Trace) -> tuple[float, float | None, Draft | None]:
    """Settle the rate in the draft; return it, that of the file's own arrivals, and a draft of runs on those."""
    if source.workload is not None:
        given = None if source.rate is None else source.rate * source.rate_scale
        return given or _mean_rate(trace, source), None, None
    arrived = dataclasses.replace(source, rate=None, rate_scale=1.0).load(0)
    try:
        own = _mean_rate(arrived, source)
    except ConfigError:
        if source.rate is None:
            raise
        own = None
    rate = float(f"{(source.rate or own or 0.0) * source.rate_scale:.6g}")
    recorded = None
    if own is not None:
        recorded = draft.copy()
        recorded.put("trace.rate", None, NAME)
        recorded.put("trace.rate_scale", rate / own, NAME)
    draft.put("trace.rate", rate, draft.origin("trace.rate"), NAME)
    draft.put("trace.rate_scale", 1.0, NAME)
    return rate, own, recorded


def _mean_rate(trace: Trace, source: TraceSource) -> float:
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if not span:
        raise ConfigError(f"the requests of {source.label} arrive all at once, so it has no rate; give one with --rate")
    return (len(trace) - 1) * NS / span


def _look(cell: Cell, rate: float, own_rate: float | None) -> Look:
    source = cell.source
    trace = source.load(cell.seed)
    whole = trace
    if source.file is not None:
        whole = dataclasses.replace(source, limit=None, rate=None, rate_scale=1.0).load(0)
    ttft = _bounds(trace.slo_ttft_ns, cell.objectives.ttft, len(trace))
    tpot = _bounds(trace.slo_tpot_ns, cell.objectives.deadline_ns, len(trace))
    decodes = trace.output_tokens > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RangeWarning)
        alone = work_ns(trace, cell.cost)
        one = cell.cost.step_ns(1, 1, 1, 0, 0, 0)
    counts = None if trace.session is None else len(set(trace.session.tolist()) - {None})
    return Look(
        requests=len(trace),
        in_file=len(whole),
        own_rate=own_rate,
        rate=rate,
        prompt_mean=float(trace.prompt_tokens.mean()),
        prompt_max=int(trace.prompt_tokens.max()),
        output_mean=float(trace.output_tokens.mean()),
        longest=int((whole.prompt_tokens + whole.output_tokens).max()),
        longest_taken=int((trace.prompt_tokens + trace.output_tokens).max()),
        prefill_only=cell.prefill_only,
        shared=ideal_prefix_hit_rate(trace) or 0.0,
        cached=cell.memory is not None and cell.memory.prefix_cache,
        sessions=counts is not None and 0 < counts < len(trace),
        has_ttft=bool((ttft < FOREVER_NS).any()),
        has_tpot=bool((tpot < FOREVER_NS).any()) and not cell.prefill_only,
        several_ttft=len(np.unique(ttft)) > 1,
        busy=float(alone.mean()) * rate / NS,
        hopeless=float(((alone > ttft) | (decodes & (one > tpot))).mean()),
    )


def _bounds(own: Any, default: int | None, n: int) -> Any:
    """Return each request's objective in nanoseconds, ``FOREVER_NS`` for none; shape (requests,)."""
    values = own_or_default(own, default)
    filled = [FOREVER_NS if v is None else v for _, v in zip(range(n), values, strict=False)]
    return np.array(filled, dtype=np.int64)
