"""Cells: one trace under one policy, on one seed, at one point of a sweep, named by the hash of all it depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from costmodels.base import CostModel
from costmodels.energy import EnergyModel
from costmodels.io import load_cost_model
from costmodels.memory import MemoryModel
from experiments.config import ClusterConfig, Config
from experiments.energy import energy_of
from experiments.memory import describe, memory_model_of, memory_of
from experiments.source import Facts, TraceSource
from policies.base import PolicyError
from policies.registry import load_plugin
from policies.spec import PolicySpec
from policies.units import ns_from_ms, ns_from_s
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives

CELL_FORMAT = 2
"""Raised when equal keys would mean different results or another layout of the folder."""


@lru_cache(maxsize=1)
def package_version() -> str:
    """Return the version of this package."""
    return version("prefillsim")


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
        resolved: dict[str, Any] = jsonable({**self.own(), **shared(self)})
        return resolved

    def own(self) -> dict[str, Any]:
        """Return that part of :meth:`resolved` which is not :func:`shared`."""
        policy = self.policy.to_dict()
        del policy["label"]
        return {
            "trace": self.digest,
            "seed": self.seed if self.source.seeded else None,
            "policy": policy,
            "memory": self.memory and self.memory.to_dict(),
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
    limits: Limits
    memory_model: MemoryModel | None
    energy: EnergyModel | None
    plugins: tuple[Plugin, ...]

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
            limits_of(config),
            memory_model,
            energy_of(config),
            plugins,
        )

    @property
    def cluster(self) -> ClusterConfig:
        """The replicas and their router."""
        return self.config.cluster

    @property
    def keep(self) -> str:
        """What is kept of every cell."""
        return self.config.keep

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
            self.limits,
            memory_of(self.config, self.memory_model, facts.longest_prompt),
            self.cluster,
            self.energy,
            self.plugins,
            tuple(point.items()),
            self.keep,
        )
        texts = {**self._shared_texts, **_texts(cell.own())}
        key = _digest(b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), texts[name]) for name in sorted(texts)))
        return dataclasses.replace(cell, key=key)

    @cached_property
    def _shared_texts(self) -> dict[str, bytes]:
        """What every key here is a hash of, besides the cell's own: written once, for a cost model's text is long."""
        return _texts(shared(self))


def shared(at: Cell | Setting) -> dict[str, Any]:
    """Return that part of :meth:`Cell.resolved` which is the same for all cells of a setting."""
    return {
        "format": CELL_FORMAT,
        "package": package_version(),
        "objectives": dataclasses.asdict(at.objectives),
        "cost_model": at.cost.to_dict(),
        "policy_cost_model": at.predictor and at.predictor.to_dict(),
        "engine": dataclasses.asdict(at.limits),
        "replicas": at.cluster.replicas,
        "router": at.cluster.router if at.cluster.replicas > 1 else None,
        "energy": at.energy and dataclasses.asdict(at.energy),
        "plugins": [p.sha256 for p in at.plugins],
        "keep": at.keep,
    }


def _texts(values: dict[str, Any]) -> dict[str, bytes]:
    return {name: canonical(value) for name, value in values.items()}
