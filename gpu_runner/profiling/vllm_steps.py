"""The real vLLM as an engine whose steps can be measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_runner.engine import Engine, EngineError
from gpu_runner.profiling.bench import Facts, Ran, Span
from gpu_runner.profiling.grid import Capacity

NOTHING = Ran((), 0, None)

PASSING = ("instance_id", "_port", "compilation_time")
"""Ends of names in vLLM's configuration whose values are drawn or measured at each start."""


class VllmSteps:
    """Steps of a :class:`gpu_runner.engine.Engine` with vLLM's own scheduler, one in flight.

    The scheduler's two methods are wrapped to see the batch and the time between decision and result; what that itself
    takes is not counted. A step's host time is all but the stretch from the end of ``schedule`` to the start of
    ``update_from_output``.

    Raises:
        EngineError: if several steps are in flight, or there is no prefix cache.
    """

    def __init__(self, engine: Engine) -> None:
        if engine.config.scheduler_config.async_scheduling:
            raise EngineError("steps can only be measured one at a time; start vLLM with async_scheduling=False")
        if not engine.config.cache_config.enable_prefix_caching:
            raise EngineError("a profile needs vLLM's prefix cache; start it with enable_prefix_caching=True")
        self._engine = engine
        self._scheduler = engine.scheduler
        self._spans: Sequence[Span] = ()
        self._facts: Facts | None = None
        self._decided = self._updating = self._own = 0
        self._schedule = self._scheduler.schedule
        self._update = self._scheduler.update_from_output
        self._scheduler.schedule = self._see_schedule
        self._scheduler.update_from_output = self._see_update

    @property
    def capacity(self) -> Capacity:
        """What vLLM has resolved."""
        config = self._engine.config
        return Capacity(
            max_num_seqs=int(config.scheduler_config.max_num_seqs),
            max_model_len=self._engine.max_model_len,
            max_step_tokens=int(self._scheduler.max_num_scheduled_tokens),
            kv_blocks=int(config.cache_config.num_gpu_blocks),
            block_size=int(config.cache_config.block_size),
        )

    @property
    def gpus(self) -> list[str]:
        """UUIDs of the NVIDIA GPUs that it uses; none on a CPU."""
        import torch

        if not torch.cuda.is_available():
            return []
        count = int(self._engine.config.parallel_config.tensor_parallel_size)
        return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]

    def facts(self) -> Facts:
        """Say what is measured."""
        if self._facts is None:
            self._facts = self._ask()
        return self._facts

    def _ask(self) -> Facts:
        found = self._engine.provenance()
        return Facts(
            setting={
                "device": found["device"],
                "model": Path(self._engine.options.model).name,
                "dtype": found["dtype"],
                "tensor_parallel": int(self._engine.config.parallel_config.tensor_parallel_size),
                "engine": "vllm",
                "engine_version": found["vllm"],
            },
            key={k: lasting(v) for k, v in found.items() if k not in ("device", "dtype")},
        )

    def add(self, name: str, ids: Sequence[int], output_tokens: int) -> None:
        """Queue a request."""
        self._engine.add(name, ids, output_tokens)

    def drop(self, names: Sequence[str]) -> None:
        """Abort requests."""
        self._engine.abort(names)

    def clear_cache(self) -> None:
        """Empty the prefix cache."""
        self._engine.reset_prefix_cache()

    def step(self, budget: int) -> Ran:
        """Run one step of at most so many tokens; without work, nothing runs."""
        scheduler = self._scheduler
        usual = scheduler.max_num_scheduled_tokens
        self._forget()
        scheduler.max_num_scheduled_tokens = min(budget, usual)
        try:
            begin = time.perf_counter_ns()
            self._engine.step()
            duration = time.perf_counter_ns() - begin - self._own
        finally:
            scheduler.max_num_scheduled_tokens = usual
        if not self._spans:
            return NOTHING
        return Ran(tuple(self._spans), duration, max(duration - (self._updating - self._decided), 0))

    def close(self) -> None:
        """Take the wraps off."""
        del self._scheduler.schedule, self._scheduler.update_from_output

    def _forget(self) -> None:
        self._spans, self._own = (), 0

    def _see_schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        begin = time.perf_counter_ns()
        self._spans = _spans(self._scheduler.requests, output.num_scheduled_tokens)
        self._decided = time.perf_counter_ns()
        self._own += self._decided - begin
        return output

    def _see_update(self, *args: Any, **kwargs: Any) -> Any:
        self._updating = time.perf_counter_ns()
        return self._update(*args, **kwargs)


def lasting(value: Any) -> Any:
    """Return a resolved configuration without what differs between two starts of the same engine."""
    if isinstance(value, Mapping):
        return {k: lasting(v) for k, v in value.items() if not k.endswith(PASSING)}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def _spans(requests: Mapping[str, Any], tokens: Mapping[str, int]) -> tuple[Span, ...]:
    """Return the shares of a batch that was decided just now: computed tokens count it already."""
    found = []
    for name, n in tokens.items():
        request = requests[name]
        start = request.num_computed_tokens - n
        found.append(Span(start, n, start >= request.num_prompt_tokens))
    return tuple(found)
