"""How to start vLLM with a policy: options of its own where it has them, else the scheduler class and its settings."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from experiments.advice.trace import Task
from policies.spec import PolicySpec

SCHEDULER = "gpu_runner.scheduler.PolicyScheduler"

ROUND = 1024
"""The longest request is rounded up to a multiple of so many tokens."""


@dataclass(frozen=True)
class Start:
    """A command line."""

    arguments: list[str]
    """After ``vllm serve MODEL``, or whatever ``program`` is."""
    stock: bool
    """Whether vLLM does it by itself."""
    notes: list[str]
    program: tuple[str, ...] = ("vllm", "serve", "MODEL")

    @property
    def settings(self) -> dict[str, Any] | None:
        """What ``--additional-config`` holds; ``None`` without it."""
        if "--additional-config" not in self.arguments:
            return None
        found: dict[str, Any] = json.loads(self.arguments[self.arguments.index("--additional-config") + 1])
        return found

    @property
    def command(self) -> str:
        """The command line, to be pasted into a shell."""
        return shlex.join([*self.program, *self.arguments])

    @property
    def lines(self) -> list[str]:
        """The command line with a line for each option."""
        lines, words = [shlex.join(self.program)], [shlex.quote(a) for a in self.arguments]
        for word in words:
            if word.startswith("--"):
                lines.append(f"    {word}")
            else:
                lines[-1] += f" {word}"
        return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def start_of(task: Task, policy: str) -> Start:
    """Return how to serve with a policy what the simulation has simulated."""
    spec = PolicySpec.parse(policy)
    if task.cell.memory is not None and task.cell.memory.regime == "store":
        return Start(
            ["--model", "MODEL", "--policy", policy],
            False,
            ["vLLM does not keep finished prompts only, as PrefillOnly does; this is the executor that does"],
            ("prefillsim", "serve-hybrid"),
        )
    chunking = spec.build().chunking
    seats = chunking.seat_limit(task.cell.limits.max_num_seqs) or 1
    stock = spec.ordering.name == "fcfs" and spec.chunking.name == "token-budget" and spec.admission is None
    if stock:
        arguments = ["--max-num-batched-tokens", str(spec.chunking.params["budget"]), "--max-num-seqs", str(seats)]
        threshold = spec.chunking.params["threshold"]
        if threshold is not None:
            arguments += ["--long-prefill-token-threshold", str(threshold)]
        length = task.config.engine.max_model_len
        arguments += [] if length is None else ["--max-model-len", str(length)]
        return Start([*arguments, *_machine(task)], True, _threshold_notes(threshold))
    length = task.config.engine.max_model_len or -(-task.look.longest // ROUND) * ROUND
    buffers = max(chunking.step_limit(seats, length), seats)
    arguments = ["--scheduler-cls", SCHEDULER, "--max-num-batched-tokens", str(buffers)]
    arguments += ["--max-num-seqs", str(seats), "--max-model-len", str(length), *_machine(task)]
    arguments += ["--additional-config", json.dumps({"prefillsim": _settings(task, policy, spec)})]
    notes = ["prefillsim is installed in vLLM's environment (docs/serving.md)"]
    if task.config.engine.max_model_len is None:
        notes.append(f"{length:,} tokens hold the longest request of the trace; vLLM refuses longer ones")
    if _has_own(task):
        notes.append("requests bring their own objectives in vllm_xargs (docs/serving.md), as those of the trace do")
    return Start(arguments, False, notes)


def _settings(task: Task, policy: str, spec: PolicySpec) -> dict[str, Any]:
    settings: dict[str, Any] = {"policy": policy}
    if spec.build().needs_predictor:
        settings["cost_model"] = task.config.policy_cost_model or task.config.cost_model
    if objectives := str(task.cell.objectives):
        settings["slo"] = objectives
    if task.config.plugins:
        settings["plugins"] = [str(path) for path in task.config.plugins]
    return settings


def _machine(task: Task) -> list[str]:
    """Return options that make the server the one that was simulated."""
    arguments = ["--async-scheduling" if task.cell.limits.pipeline_depth > 1 else "--no-async-scheduling"]
    if task.config.hardware.tp > 1:
        arguments += ["--tensor-parallel-size", str(task.config.hardware.tp)]
    memory = task.cell.memory
    if memory is not None:
        arguments.append("--enable-prefix-caching" if memory.prefix_cache else "--no-enable-prefix-caching")
        if memory.block_size != 16:
            arguments += ["--block-size", str(memory.block_size)]
    return arguments


def _threshold_notes(threshold: int | None) -> list[str]:
    if threshold is None:
        return []
    return ["vLLM lifts the threshold for a request that is alone; the simulation does not"]


def _has_own(task: Task) -> bool:
    trace = task.cell.source.load(task.cell.seed)
    return trace.slo_ttft_ns is not None or trace.slo_tpot_ns is not None
