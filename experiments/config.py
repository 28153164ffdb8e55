"""An experiment's configuration: its tables and keys, each with what it may be.

:mod:`experiments.draft` collects the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from costmodels.memory import CHUNK, MODES
from costmodels.parallel import LINKS, PREFIX
from policies.registry import nearest
from sim.memory import Regime
from sim.prefixstore import Suffix
from sim.routers import ROUTERS


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names where it came from and what would be right."""


MOST_SEEDS = 100_000

MOST = 2**63 - 1
"""A whole number in a table of results has 64 bits."""


def _seeds(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not 1 <= value <= MOST_SEEDS:
            raise ValueError(f"the number of seeds should be at least 1 and at most {MOST_SEEDS}")
        return list(range(value))
    if isinstance(value, list | tuple):
        if len(value) > MOST_SEEDS:
            raise ValueError(f"there should be at most {MOST_SEEDS} seeds")
        if len(set(map(repr, value))) != len(value):
            raise ValueError("a seed is listed twice")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_of(known: Sequence[str]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"it should be one of {', '.join(known)}{nearest(str(value), known)}")
        return value

    return BeforeValidator(check)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Seed = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceConfig(_Table):
    """``[trace]``: a synthetic workload or a file."""

    workload: str | None = None
    file: Path | None = None
    limit: Annotated[Count, Field(le=2**40)] | None = None
    """The first so many requests of a file; how many a workload has."""
    rate: Positive | None = None
    """Requests per second: of a workload, or of Poisson arrivals that take the place of a file's own."""
    rate_scale: Positive = 1.0
    """How many times as dense arrivals become."""
    format: str | None = None
    """The file's format, where its content does not tell."""
    block_size: Count | None = None
    """Tokens per hash id, where the file does not tell."""


class EngineConfig(_Table):
    """``[engine]``: bounds beside the policy; none by default."""

    max_num_seqs: Count | None = None
    max_model_len: Count | None = None
    horizon: Positive | None = None
    """Seconds after which no step is decided."""
    pipeline_depth: Annotated[Count, Field(le=2)] = 1
    """Steps in flight: 2 decides each while the one before it runs, as vLLM's asynchronous scheduling does."""


class HardwareConfig(_Table):
    """``[hardware]``: what each replica runs on. It gives the cost model and the KV memory where they are not given."""

    gpu: str | None = None
    llm: str | None = None
    mode: Annotated[str, _one_of(MODES)] = "paged"
    """How prompts are prefilled; see :class:`costmodels.memory.MemoryModel`."""
    tp: Count = 1
    """Tensor parallel GPUs per pipeline stage."""
    pp: Count = 1
    """Pipeline stages."""
    link: Annotated[str, _one_of(LINKS)] | None = None
    """Between the GPUs; NVLink by default where the GPU has it."""
    chunk: Annotated[Count, Field(le=10**9 - 1)] = CHUNK
    """Tokens that chunked and hybrid prefilling put through the linear layers at once."""

    @property
    def cost_model(self) -> str | None:
        """The name of the cost model that follows, ``None`` unless both GPU and model are named."""
        if self.gpu is None or self.llm is None:
            return None
        # Hybrid prefilling leaves attention whole; only prompts that are split as a whole pay for it.
        chunk = self.chunk if self.mode == "chunked" else None
        parts = {"llm": self.llm, "gpu": self.gpu, "tp": self.tp, "pp": self.pp, "link": self.link, "chunk": chunk}
        return PREFIX + ",".join(f"{key}={value}" for key, value in parts.items() if value not in (None, 1))


class MemoryConfig(_Table):
    """``[memory]``: KV memory of each replica, in the terms of :class:`sim.memory.Memory`; unlimited without any key.

    What is not given follows from ``[hardware]`` where that names GPU and model.
    """

    blocks: Annotated[int, Field(ge=0, le=2**40, strict=True)] | None = None
    block_size: Annotated[Count, Field(le=2**16)] = 16
    prefix_cache: Annotated[bool, Field(strict=True)] | None = None
    """By default where the number of blocks is known."""
    regime: Annotated[Regime, _one_of(get_args(Regime))] | None = None
    """By default the store for modes that keep the KV of one layer at a time, otherwise the pool."""
    suffix: Annotated[Suffix, _one_of(get_args(Suffix))] = "keep"
    max_input: Annotated[Count, Field(le=2**40)] | None = None
    """Longest prompt in tokens; longer ones are rejected. The profile run sets working memory aside for so many."""
    cpu_gib: Annotated[Positive, Field(le=2**30)] | None = None
    """CPU memory for ``suffix = "offload"``."""
    bytes_per_block: Annotated[Count, Field(le=2**50)] | None = None
    """KV bytes of a block that travel between CPU and GPU."""
    pcie_gb_per_s: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False, strict=True)] | None = None
    pcie_latency_us: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)] | None = None


class ClusterConfig(_Table):
    """``[cluster]``: replicas of the engine, each with a memory of its own, behind a router."""

    replicas: Annotated[Count, Field(le=4096)] = 1
    router: Annotated[str, _one_of(list(ROUTERS))] = "user"


class Config(_Table):
    """A whole experiment: every policy on every seed of the trace, at every point of the sweep."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "experiment"
    trace: TraceConfig = TraceConfig()
    policies: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    plugins: Annotated[tuple[Path, ...], BeforeValidator(_listed)] = ()
    """Python files that register policy parts of one's own."""
    slo: str | None = None
    """``ttft:1000,tpot_p99:25``; without it the workload's own TTFT objective, else none."""
    cost_model: str = "sloweave-paper"
    """By default the one of ``[hardware]``, where that names GPU and model."""
    policy_cost_model: str | None = None
    """What policies believe; by default the engine's own cost model."""
    engine: EngineConfig = EngineConfig()
    hardware: HardwareConfig = HardwareConfig()
    memory: MemoryConfig = MemoryConfig()
    cluster: ClusterConfig = ClusterConfig()
    seeds: Seeds = (0, 1, 2, 3, 4)
    """A number N for seeds 0 to N - 1, or a list."""
    keep: Literal["records", "summary"] = "records"
    """``records`` stores both tables of every cell, ``summary`` only its figures."""


def known_keys(tables: Iterable[str] = ()) -> list[str]:
    """Return the keys of a table, of the whole configuration by default."""
    model: Any = Config
    for table in tables:
        model = model.model_fields[table].annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def dotted_keys() -> list[str]:
    """Return every key that a sweep may vary or ``--set`` may set, dotted."""
    tables = ("trace", "engine", "hardware", "memory", "cluster")
    return [k for k in known_keys() if k not in tables] + [f"{t}.{k}" for t in tables for k in known_keys([t])]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X? (known: ...)"``, without the question where nothing is similar."""
    known = list(known)
    return nearest(name, known) + (f" (known: {', '.join(known)})" if known else "")
