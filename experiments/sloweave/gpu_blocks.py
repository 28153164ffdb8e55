"""SLOWeave's three GPU experiments as settings: hardware, workload, policies, and the scale that makes them comparable.

The paper's lengths and rates cannot be those of its GPU runs: prefill alone would need three times an A100's peak. What
can be asked of a GPU is the same experiment in a slower time. One factor stretches it: the requests per second that the
paper's cost model completes, over those that the GPU completes, of the same requests, all at hand at once, each
prefilled whole. Arrivals are so many times as far apart, and so what is offered over what can be done is the
simulator's; objectives are as many times as long.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from costmodels.base import CostModel
from costmodels.energy import EnergyModel, power_energy
from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.io import load_cost_model
from costmodels.sources import with_dtype
from experiments.artefacts import USABLE
from policies.spec import parse_policy
from policies.units import MS, ns_from_ms
from sim.engine import simulate
from sim.memory import Memory
from sim.objectives import Objectives
from traces.arrivals import all_at_once
from traces.schema import Trace
from traces.synthetic import PAPER_REQUESTS, SLOWEAVE, generate

TPOT_MS = 25

SCALED, PRINTED = "scaled", "printed"

OBJECTIVES = {
    SCALED: "TPOT objective 25 ms in the paper's time",
    PRINTED: "TPOT objective 25 ms by the clock",
}

SLOWEAVE_POLICY = "sloweave"

CAPACITY_SEEDS = range(2000, 2003)
"""No other run uses them."""

CAPACITY_POLICY = "fcfs+full"

KV_BLOCK = 16


@dataclass(frozen=True)
class Block:
    """One block of Table 2."""

    name: str
    workload: str
    cost_model: str
    gpu: str
    gpus: int
    llm: str
    dtype: str
    default: str
    """What the runtime does by default."""
    printed_chunk: int
    """The fixed chunk that the paper's row has."""
    requests: int = PAPER_REQUESTS

    @cached_property
    def cost(self) -> CostModel:
        """How long steps take, and what policies believe."""
        return load_cost_model(self.cost_model)

    @property
    def shape(self) -> LlmShape:
        """The language model."""
        return with_dtype(load_llm(self.llm), self.dtype)

    @property
    def energy(self) -> EnergyModel:
        """Power of the GPUs that serve the model, and of no other in the node."""
        return power_energy(self.shape, load_gpu(self.gpu), self.gpus)

    @property
    def memory(self) -> Memory:
        """What is left of the GPUs' memory for KV, in vLLM's pool; nothing is shared between requests."""
        gpu = load_gpu(self.gpu)
        left = USABLE * self.gpus * gpu.memory_bytes - self.shape.weight_bytes
        return Memory(blocks=int(left / self.shape.kv_bytes_per_token) // KV_BLOCK, prefix_cache=False)

    @cached_property
    def capacity(self) -> float:
        """Requests per second that this GPU completes when all are at hand."""
        return _capacity(self.workload, self.cost)

    @cached_property
    def paper_capacity(self) -> float:
        """The same under the paper's cost model."""
        return _paper_capacity(self.workload)

    @property
    def scale(self) -> float:
        """By how much time is stretched."""
        return self.paper_capacity / self.capacity

    @property
    def rate(self) -> float:
        """Requests per second that are offered."""
        return SLOWEAVE[self.workload].rate / self.scale

    @property
    def load(self) -> float:
        """What is offered over what can be done, the simulator's."""
        return self.rate / self.capacity

    def trace(self, seed: int) -> Trace:
        """Return the requests of the simulator's run with this seed, in this GPU's time."""
        return generate(self.workload, seed).limit(self.requests).scale_rate(1 / self.scale)

    def objectives(self, target: str) -> Objectives:
        """Return the objectives: TTFT always in the paper's time, TPOT in that or by the clock."""
        tpot_ms = TPOT_MS * (self.scale if target == SCALED else 1)
        return Objectives(
            ttft=ns_from_ms(round(SLOWEAVE[self.workload].ttft_ms * self.scale, 3)), tpot_p99=round(tpot_ms * MS)
        )


def _capacity(workload: str, cost: CostModel) -> float:
    spans = 0.0
    for seed in CAPACITY_SEEDS:
        trace = generate(workload, seed).with_arrivals(all_at_once)
        spans += float(simulate(trace, parse_policy(CAPACITY_POLICY), cost).requests["finished_ns"].max()) / 1e9
    return PAPER_REQUESTS * len(CAPACITY_SEEDS) / spans


@cache
def _paper_capacity(workload: str) -> float:
    return _capacity(workload, load_cost_model("sloweave-paper"))


@dataclass(frozen=True)
class GpuExperiment:
    """All blocks, and what is tried in each."""

    blocks: tuple[Block, ...]
    chunks: tuple[int, ...]
    budgets: tuple[int, ...]
    seeds: int
    tuning_seeds: int

    @property
    def fixed(self) -> dict[str, str]:
        """Fixed chunks of one prefill, by policy."""
        return {f"fcfs+fixed:chunk={c}": f"fixed-{c}" for c in self.chunks}

    @property
    def shared(self) -> dict[str, str]:
        """Budgets shared by decodes and several prefills, Sarathi's way, by policy."""
        return {f"sarathi:budget={b}": f"budget-{b}" for b in self.budgets}

    def tuned(self) -> Iterator[str]:
        """Yield the policies of which the best is chosen."""
        yield from dict.fromkeys((*self.fixed, *self.shared))


def load_experiment() -> GpuExperiment:
    """Read ``gpu.toml``."""
    data = tomllib.loads((resources.files("experiments.sloweave") / "gpu.toml").read_text(encoding="utf-8"))
    return GpuExperiment(
        tuple(Block(**block) for block in data["block"]),
        tuple(data["chunks"]),
        tuple(data["budgets"]),
        data["seeds"],
        data["tuning_seeds"],
    )


def paper_rows() -> dict[tuple[str, str], dict[str, float]]:
    """Return Table 2: the metrics by block and policy (``default``, ``fixed``, ``sloweave``)."""
    with (resources.files("experiments.sloweave") / "gpu.csv").open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return {(r.pop("block"), r.pop("policy")): {k: float(v) for k, v in r.items()} for r in rows}
