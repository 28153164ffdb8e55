"""PrefillOnly's four set-ups (Table 3) and five systems, each deployed on two GPUs for prompts of a known length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodels.base import CostModel
from costmodels.io import load_cost_model
from costmodels.memory import CHUNK, MemoryModel
from experiments.prefillonly.table2 import SETUPS as LLMS
from experiments.prefillonly.table2 import SYSTEMS, WL1_TOKENS, WL2_TOKENS, system_memory
from policies import parse_policy
from sim.cluster import ClusterRun, simulate_cluster
from sim.memory import Memory
from traces.schema import Trace

GPUS = 2

LAM = 500
"""λ of the paper's experiments, in tokens per second (§7.1)."""

PREFILLONLY = "prefillonly"

ORDERINGS = {"fcfs": "fcfs+full", "srjf-static": "srjf-static+full", "srjf-calibrated": "prefillonly"}
"""Policies for PrefillOnly's engine that differ in the ordering alone."""


@dataclass(frozen=True)
class Setup:
    """Two GPUs, the link between them, and the model that they serve."""

    name: str
    title: str
    gpu: str
    llm: str
    link: str


SETUPS = {
    s.name: s
    for s in (
        Setup("l4", "2× L4, Llama-3.1-8B", "l4", LLMS["l4"], "pcie"),
        Setup("a100", "2× A100 40 GB, Qwen-32B FP8", "a100-40", LLMS["a100-40"], "pcie"),
        Setup("h100", "2× H100 PCIe, Llama-3.3-70B FP8", "h100-pcie", LLMS["h100-pcie"], "pcie"),
        Setup("h100-nvlink", "2× H100 NVLink, Llama-3.3-70B FP8", "h100-nvlink", LLMS["h100-pcie"], "nvlink"),
    )
}
"""The paper's Table 3."""

UNLINKED = {"h100-nvlink": "h100-pcie"}
"""Cards that only their link tells from another: alone they are one card, whose runs need not be made twice."""

WORKLOADS = {"post-recommendation": WL1_TOKENS, "credit-verification": WL2_TOKENS}
"""The longest prompt of each workload, in tokens, which is what the profile run is made for."""


@dataclass(frozen=True)
class Deployment:
    """A system on a set-up, ready to run: what each replica believes, costs and remembers, and how many there are."""

    policy: str
    cost: str
    """Name of the cost model, see :func:`costmodels.parallel.named_prefill_cost`."""
    memory: Memory
    replicas: int
    router: str = "user"

    def settings(self) -> dict[str, Any]:
        """Return the keys of a configuration that stand for it, see :class:`experiments.config.Config`."""
        memory = self.memory
        return {
            "policies": [self.policy],
            "cost_model": self.cost,
            "memory": {
                "blocks": memory.blocks,
                "block_size": memory.block_size,
                "regime": memory.regime,
                "suffix": memory.suffix,
                "max_input": memory.max_input,
            },
            "cluster": {"replicas": self.replicas, "router": self.router},
        }

    def with_policy(self, policy: str) -> Deployment:
        """Return the same engine under another policy."""
        return replace(self, policy=policy)

    def cost_model(self) -> CostModel:
        """Return what a step costs."""
        return load_cost_model(self.cost)

    def run(self, trace: Trace) -> ClusterRun:
        """Simulate a trace."""
        policies = [parse_policy(self.policy) for _ in range(self.replicas)]
        return simulate_cluster(trace, policies, self.cost_model(), router=self.router, memory=self.memory)


def memory_model(setup: Setup, system: str) -> MemoryModel:
    """Return the memory of one GPU of a system; how each prefills is that of Table 2.

    Raises:
        KeyError: if there is no such system.
    """
    return system_memory(system, setup.gpu, setup.llm)


def fits(setup: Setup, system: str, longest: int) -> bool:
    """Return whether prompts of up to ``longest`` tokens can be prefilled: the ticks of Table 2."""
    return memory_model(setup, system).max_input_length() >= longest


def deploy(setup: Setup, system: str, longest: int) -> Deployment:
    """Return a system on a set-up; prefix caching is on in all of them, and longer prompts are rejected.

    One GPU's systems run one replica on each GPU, users in turn; parallel ones are a single engine (§7.1). An engine
    that prefills by chunks pays for them in its cost and has memory for one chunk, of the same size.

    Args:
        setup: from :data:`SETUPS`, or of one's own.
        system: from :data:`experiments.prefillonly.table2.SYSTEMS`.
        longest: the prompt that the profile run is made for, in tokens.

    Raises:
        HardwareError: if prompts of that length do not fit, see :func:`fits`.
        KeyError: if there is no such system.
    """
    model = memory_model(setup, system)
    chunked = model.mode == "chunked"
    parallel = model.tp * model.pp > 1
    cost = f"prefill:llm={setup.llm},gpu={setup.gpu if parallel else UNLINKED.get(setup.gpu, setup.gpu)}"
    if parallel:
        cost += f",link={setup.link},tp={model.tp},pp={model.pp}"
    if chunked:
        cost += f",chunk={CHUNK}"
    keeps = model.keeps_all_kv
    memory = Memory(
        blocks=model.kv_blocks_after_profile(longest),
        regime="pool" if keeps else "store",
        suffix="keep" if keeps else "discard",
        max_input=longest,
    )
    if system == PREFILLONLY:
        policy = f"prefillonly:lam={LAM}"
    else:
        policy = f"fcfs+token-budget:budget={CHUNK}" if chunked else "fcfs+full"
    return Deployment(policy, cost, memory, GPUS // (model.tp * model.pp))


def deployments(setup: Setup, longest: int) -> dict[str, Deployment]:
    """Return every system whose maximum input length allows prompts of ``longest`` tokens, in Table 2's order."""
    return {system: deploy(setup, system, longest) for system in SYSTEMS if fits(setup, system, longest)}
