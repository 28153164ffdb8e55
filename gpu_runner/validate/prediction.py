"""What a public run should have been, from kernel times, vLLM's configuration, arrivals and lengths alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodels.hardware import LlmShape, load_llm
from costmodels.kernel_cost import KernelCost
from costmodels.kernels_csv import CsvKernels, read_csv_kernels
from gpu_runner.validate.ends import Sample, sample_of
from gpu_runner.validate.recorded import RecordedRun
from policies.spec import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import Tables

FITTING_ROUNDS = 3

MOST_SHIFT = 8
"""A schedule that shifts makes the end of a run move by at most so many times more or less than its steps do."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """A simulated run and what it was made with."""

    pipeline_depth: int
    host_ns: int
    """What each step takes beside its kernels."""
    tables: Tables

    @property
    def sample(self) -> Sample:
        """What the requests see."""
        return sample_of(self.tables.requests, self.tables.steps, self.tables.preemptions, Objectives())

    @property
    def end_ns(self) -> int:
        """When the last step ends."""
        steps = self.tables.steps
        return int((steps["start_ns"] + steps["duration_ns"]).max())


def llm_of(recorded: RecordedRun, name: str | None = None) -> LlmShape:
    """Return the shape of the model that was served, or the one named.

    Raises:
        HardwareError: if there is none of that name.
    """
    return load_llm(name or recorded.config.model.rpartition("/")[2].lower())


def kernels_of(recorded: RecordedRun, llm: LlmShape) -> CsvKernels:
    """Read the kernel times beside a run.

    Raises:
        KernelError: if they cannot be read.
    """
    return read_csv_kernels(recorded.folder, llm)


def predict(recorded: RecordedRun, kernels: CsvKernels, pipeline_depth: int, host_ns: int = 0) -> Prediction:
    """Simulate a run.

    vLLM's own scheduler, its blocks and limits; what prompts have in common was not recorded, so none of them share
    anything, though a preempted request may find its own blocks again.
    """
    config = recorded.config
    memory = Memory(blocks=config.blocks, block_size=config.block_size, prefix_cache=config.prefix_cache)
    tables = simulate(
        recorded.trace,
        parse_policy(f"vllm-default:budget={config.budget}"),
        KernelCost(replace(kernels, host_ns=host_ns)),
        limits=Limits(config.max_num_seqs, config.max_model_len, pipeline_depth=pipeline_depth),
        cache=memory.build(recorded.trace),
    )
    return Prediction(pipeline_depth, host_ns, tables)


def fit_host(
    recorded: RecordedRun, kernels: CsvKernels, first: Prediction, simulated: Callable[[], object] = lambda: None
) -> Prediction:
    """Return the prediction whose last token comes when it was measured to, fitting one constant per step.

    That moment is the one number of the run that is used. The first guess spreads what is missing over all steps; as
    schedules shift with it and an idle engine hides it, two more follow the secant, and the run that ends nearest is
    kept. The constant is negative where the kernels, measured one by one, take longer than together.

    Args:
        recorded: the run.
        kernels: of its GPU.
        first: its prediction without the constant.
        simulated: called after every run of the simulator, at most ``FITTING_ROUNDS`` times.
    """
    target = int(recorded.finished_ns.max())
    steps = len(first.tables.steps["start_ns"])
    slope, best, latest = float(steps), first, first
    for _ in range(FITTING_ROUNDS):
        host = latest.host_ns + int(np.rint((target - latest.end_ns) / slope))
        if host == latest.host_ns:
            break
        before, latest = latest, predict(recorded, kernels, first.pipeline_depth, host)
        simulated()
        if abs(latest.end_ns - target) < abs(best.end_ns - target):
            best = latest
        secant = (latest.end_ns - before.end_ns) / (latest.host_ns - before.host_ns)
        slope = float(np.clip(secant, steps / MOST_SHIFT, steps * MOST_SHIFT))
    return best
