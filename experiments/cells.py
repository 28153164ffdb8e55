"""Cells: one trace under one policy, on one seed, at one point of a sweep, named by the hash of all it depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from costmodels.base import CostModel
from costmodels.energy import EnergyModel
from costmodels.io import load_cost_model
from costmodels.memory import MemoryModel
from experiments.config import ClusterConfig, Config, ConfigError, TraceConfig
from experiments.energy import energy_of
from experiments.memory import describe, memory_model_of, memory_of
from policies.base import PolicyError
from policies.registry import load_plugin
from policies.spec import PolicySpec
from policies.units import ns_from_ms, ns_from_s
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from traces.schema import Trace, TraceError

CELL_FORMAT = 2
"""Raised when equal keys would mean different results or another layout of the folder."""


@lru_cache(maxsize=1)
def package_version() -> str:
    """Return the version of this package."""
    return version("prefillsim")


class Facts(NamedTuple):
    """What is to be known of a trace without keeping it."""

    digest: str
    requests: int
    longest_prompt: int
    longest_output: int


@dataclass(frozen=True)
class TraceSource:
    """Where a cell's requests come from; :meth:`load` gives equal traces in every process."""

    workload: str | None
    file: str | None
    limit: int | None
    rate: float | None
    rate_scale: float
    format: str | None
    block_size: int | None
    stamp: tuple[int, int] | None
    """The file's size and time of change: a file that changes is another source."""

    @classmethod
    def of(cls, config: TraceConfig) -> TraceSource:
        """Read ``[trace]``.

        Raises:
            ConfigError: unless it names exactly one of workload and file.
        """
        if (config.workload is None) == (config.file is None):
            what = "no trace" if config.workload is None else "two traces"
            raise ConfigError(f"{what}: give one of --workload NAME and --trace FILE (trace.workload, trace.file)")
        if config.workload is not None:
            for key in ("format", "block_size"):
                if getattr(config, key) is not None:
                    raise ConfigError(f"trace.{key} describes a file, but the trace is the workload {config.workload}")
        return cls(
            config.workload,
            None if config.file is None else str(config.file),
            config.limit,
            config.rate,
            config.rate_scale,
            config.format,
            config.block_size,
            None if config.file is None else _stamp(config.file),
        )

    @property
    def seeded(self) -> bool:
        """Whether seeds give different traces: a file's own arrivals are the same for all."""
        return self.workload is not None or self.rate is not None

    @property
    def label(self) -> str:
        """The workload's name, or the file's."""
        return self.workload or Path(self.file or "").name

    def load(self, seed: int) -> Trace:
        """Return the trace of a seed.

        Raises:
            TraceError: if there is no such workload, or the file cannot be read.
        """
        return _load(self, seed if self.seeded else 0)

    def facts(self, seed: int) -> Facts:
        """Return what a seed's trace is like; see :meth:`load` for errors."""
        return _facts(self, seed if self.seeded else 0)


@lru_cache(maxsize=4)
def _load(source: TraceSource, seed: int) -> Trace:
    from traces.synthetic import Streams, generate

    if source.workload is not None:
        trace = generate(source.workload, seed, source.limit, source.rate)
    else:
        trace = _read(str(source.file), source.format, source.block_size, source.stamp)
        if not len(trace):
            raise TraceError(f"{source.file}: the trace has no requests")
        if source.limit is not None:
            trace = trace.limit(source.limit)
        if source.rate is not None:
            from traces.arrivals import poisson

            rate, stream = source.rate, Streams.of(seed).arrivals
            trace = trace.with_arrivals(lambda n: poisson(n, rate, stream))
    return trace if source.rate_scale == 1 else trace.scale_rate(source.rate_scale)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None  # reading it says what is wrong
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=2)
def _read(file: str, fmt: str | None, block_size: int | None, stamp: tuple[int, int] | None) -> Trace:
    from traces.io import read_trace

    trace = read_trace(Path(file), fmt=fmt, block_size=block_size)
    if _stamp(Path(file)) != stamp:
        raise TraceError(f"trace {file} changed during the run; start again")
    return trace


@lru_cache(maxsize=4096)
def _facts(source: TraceSource, seed: int) -> Facts:
    trace = source.load(seed)
    longest = (int(column.max(initial=0)) for column in (trace.prompt_tokens, trace.output_tokens))
    return Facts(trace.digest(), len(trace), *longest)


@dataclass(frozen=True)
class Plugin:
    """A user's file of policy parts, and the hash of its text."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Cell:
    """Everything that one run depends on; small enough to send to another process."""

    source: TraceSource
    seed: int
    facts: Facts
    """Of the trace."""
    policy: PolicySpec
    objectives: Objectives
    cost: CostModel
    predictor: CostModel | None
    """What the policy believes; ``None`` for ``cost``."""
    limits: Limits
    memory: Memory | None
    """KV memory of each replica; ``None`` is unlimited and never hits."""
    cluster: ClusterConfig
    energy: EnergyModel | None
    """What each replica's steps draw; ``None`` where nothing says what hardware that is."""
    plugins: tuple[Plugin, ...]
    point: tuple[tuple[str, Any], ...]
    """The axes of the sweep and this cell's values."""
    keep: str
    key: str = ""

    @property
    def label(self) -> str:
        """The policy as the user wrote it."""
        return self.policy.label

    @property
    def digest(self) -> str:
        """The hash of the trace."""
        return self.facts.digest

    @property
    def requests(self) -> int:
        """How many the trace has."""
        return self.facts.requests

    @property
    def replicas(self) -> str:
        """How many there are and their KV memory, for people; empty for one without bounds."""
        return describe(self.memory, self.cluster)

    @property
    def prefill_only(self) -> bool:
        """Whether no request has more than one output token."""
        return self.facts.longest_output <= 1

    def resolved(self) -> dict[str, Any]:
        """Return what the key is the hash of, JSON types only."""
        resolved: dict[str, Any] = jsonable({**self.own(), **self.shared()})
        return resolved

    def own(self) -> dict[str, Any]:
        """Return that part of :meth:`resolved` in which the cells of a setting differ."""
        policy = self.policy.to_dict()
        del policy["label"]
        return {
            "trace": self.digest,
            "seed": self.seed if self.source.seeded else None,
            "policy": policy,
            "memory": self.memory and self.memory.to_dict(),
        }

    def shared(self) -> dict[str, Any]:
        """Return that part of :meth:`resolved` in which they do not."""
        return {
            "format": CELL_FORMAT,
            "package": package_version(),
            "objectives": dataclasses.asdict(self.objectives),
            "cost_model": self.cost.to_dict(),
            "policy_cost_model": self.predictor and self.predictor.to_dict(),
            "engine": dataclasses.asdict(self.limits),
            "replicas": self.cluster.replicas,
            "router": self.cluster.router if self.cluster.replicas > 1 else None,
            "energy": self.energy and dataclasses.asdict(self.energy),
            "plugins": [p.sha256 for p in self.plugins],
            "keep": self.keep,
        }

    def describe(self) -> str:
        """Return one line that tells this cell from its neighbours, for messages."""
        at = ", ".join(f"{axis}={value}" for axis, value in self.point)
        return f"{self.label} on {self.source.label}, seed {self.seed}" + (f", {at}" if at else "")


def jsonable(value: Any) -> Any:
    """Return ``value`` with JSON types only: NaN becomes null, infinities text, tuples lists."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def canonical(value: Any) -> bytes:
    """Return the one JSON text of ``value``, for hashing."""
    return json.dumps(jsonable(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def json_bytes(value: Any) -> bytes:
    """Return ``value`` as a JSON file to read."""
    return (json.dumps(jsonable(value), indent=1, allow_nan=False) + "\n").encode()


def hash_of(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of ``value``'s canonical JSON."""
    return _digest(canonical(value))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def load_plugins(paths: tuple[Path, ...]) -> tuple[Plugin, ...]:
    """Run the plug-in files, each once however often it is named; what they print goes to stderr.

    Raises:
        PolicyError: if one cannot be read or run, or registers nothing.
    """
    plugins = []
    for path in dict.fromkeys(paths):
        with redirect_stdout(sys.stderr):
            load_plugin(path)
        plugins.append(Plugin(str(path), hashlib.sha256(path.read_bytes()).hexdigest()))
    _loaded.update(plugins)
    return tuple(plugins)


_loaded: set[Plugin] = set()


def require_plugins(plugins: tuple[Plugin, ...]) -> None:
    """Load, in a worker process, what :func:`load_plugins` loaded in the first.

    Raises:
        PolicyError: if a file has changed since.
    """
    for plugin in plugins:
        if plugin in _loaded:
            continue
        if load_plugins((Path(plugin.path),)) != (plugin,):
            raise PolicyError(f"plug-in {plugin.path} changed during the run; start again")


def objectives_of(config: Config) -> Objectives:
    """Return ``slo``, or the TTFT objective that the workload's paper states, or none.

    Raises:
        ObjectiveError: if ``slo`` cannot be read.
    """
    from traces.synthetic import Sloweave, find_workload

    if config.slo is not None:
        return Objectives.parse(config.slo)
    workload = None if config.trace.workload is None else find_workload(config.trace.workload)
    return Objectives(ttft=ns_from_ms(workload.ttft_ms)) if isinstance(workload, Sloweave) else Objectives()


def limits_of(config: Config) -> Limits:
    """Return ``[engine]`` in the engine's units."""
    engine = config.engine
    horizon = None if engine.horizon is None else ns_from_s(engine.horizon)
    return Limits(engine.max_num_seqs, engine.max_model_len, horizon, engine.pipeline_depth)


@dataclass(frozen=True)
class Setting:
    """What all cells at one point of a sweep share."""

    config: Config
    source: TraceSource
    objectives: Objectives
    cost: CostModel
    predictor: CostModel | None
    memory_model: MemoryModel | None
    energy: EnergyModel | None
    plugins: tuple[Plugin, ...]
    _texts: dict[str, bytes] = dataclasses.field(init=False, repr=False, compare=False, default_factory=dict)
    """What cells share of the text that their keys are hashes of: a cost model's is long."""

    @classmethod
    def of(cls, config: Config, plugins: tuple[Plugin, ...]) -> Setting:
        """Read a configuration; its plug-ins have been loaded.

        Raises:
            ConfigError, ObjectiveError, CostModelError: if a part cannot be used.
        """
        believed = config.policy_cost_model
        memory_model = memory_model_of(config)
        return cls(
            config,
            TraceSource.of(config.trace),
            objectives_of(config),
            load_cost_model(config.cost_model),
            None if believed is None else load_cost_model(believed),
            memory_model,
            energy_of(config),
            plugins,
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that give different traces."""
        return self.config.seeds if self.source.seeded else self.config.seeds[:1]

    def cell(self, policy: PolicySpec, seed: int, point: dict[str, Any]) -> Cell:
        """Return a cell with its key."""
        facts = self.source.facts(seed)
        cell = Cell(
            self.source,
            seed,
            facts,
            policy,
            self.objectives,
            self.cost,
            self.predictor,
            limits_of(self.config),
            memory_of(self.config, self.memory_model, facts.longest_prompt),
            self.config.cluster,
            self.energy,
            self.plugins,
            tuple(point.items()),
            self.config.keep,
        )
        if not self._texts:
            self._texts.update({name: canonical(value) for name, value in cell.shared().items()})
        texts = {**self._texts, **{name: canonical(value) for name, value in cell.own().items()}}
        key = _digest(b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), texts[name]) for name in sorted(texts)))
        return dataclasses.replace(cell, key=key)
