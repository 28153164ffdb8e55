"""The real vLLM engine in this process, one step at a time."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_runner.described import device, name_of, plain
from policies.units import NS

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What vLLM is told before it is imported, unless the user has said otherwise; the first is not theirs to change."""

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2"}
"""The same where it runs on a CPU: GiB of KV memory."""

WARM_UP_OUTPUTS = 4
WARM_UP_BATCH = 64


class EngineError(ValueError):
    """An engine that cannot start, or is used wrongly; the message says what would be right."""


@dataclass(frozen=True)
class EngineOptions:
    """How vLLM is started, by vLLM's own names; ``None`` leaves it to vLLM."""

    model: str
    """A folder, or a name on the model hub."""
    dtype: str = "auto"
    load_format: str = "auto"
    """``dummy``: random weights, so that a ``config.json`` suffices."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool | None = None
    """By default on a CPU."""
    scheduler_cls: str | type[object] | None = None
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Any other of vLLM's ``EngineArgs``."""

    def arguments(self, on_cpu: bool) -> dict[str, Any]:
        """Return them as ``EngineArgs`` takes them, those that are ``None`` left out."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "more"}
        own["enforce_eager"] = on_cpu if self.enforce_eager is None else self.enforce_eager
        own["additional_config"] = dict(self.additional_config)
        defaults = {"skip_tokenizer_init": True, "disable_log_stats": True}
        return {**defaults, **{k: v for k, v in own.items() if v is not None}, **self.more}


class Engine:
    """A vLLM engine whose scheduler and steps are within reach; made by :func:`open_engine`.

    Times that it takes and gives are those of :func:`time.time_ns`, vLLM's clock of arrivals.
    """

    def __init__(self, engine: Any, options: EngineOptions) -> None:
        self._engine = engine
        self.options = options

    @property
    def config(self) -> Any:
        """The resolved configuration, a ``VllmConfig``."""
        return self._engine.vllm_config

    @property
    def core(self) -> Any:
        """The engine's core, an ``EngineCore``."""
        return self._engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        """The scheduler: vLLM's own, or the one that was named in its place."""
        return self.core.scheduler

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and outputs."""
        return int(self.config.model_config.max_model_len)

    @property
    def vocab(self) -> int:
        """Tokens of the model's vocabulary."""
        return int(self.config.model_config.get_vocab_size())

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""
        return bool(self._engine.has_unfinished_requests())

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand in a request that generates exactly ``max_tokens`` tokens.

        Args:
            request_id: unique among those under way.
            ids: the prompt's tokens.
            max_tokens: outputs.
            arrival_ns: when it arrived, on the clock of ``time.time_ns``; now by default.
            extra_args: reaches the scheduler in the request's sampling parameters.

        Raises:
            ValueError: vLLM's, if the request can never run.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args=dict(extra_args) if extra_args else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        arrival = None if arrival_ns is None else arrival_ns / NS
        self._engine.add_request(request_id, {"prompt_token_ids": list(ids)}, parameters, arrival_time=arrival)

    def step(self) -> list[str]:
        """Run one step, and return the ids of the requests that finished in it, aborted ones too."""
        return [output.request_id for output in self._engine.step() if output.finished]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests, wherever they are."""
        self._engine.abort_request(list(request_ids))

    def warm_up(self) -> None:
        """Run batches like those to come, so that nothing is compiled or allocated later.

        That is the longest prompt that one step may take, then a batch of short requests that decode together. The
        prefix cache is empty afterwards.
        """
        scheduling = self.config.scheduler_config
        longest = min(scheduling.max_num_batched_tokens, self.max_model_len - WARM_UP_OUTPUTS)
        size = min(scheduling.max_num_seqs, WARM_UP_BATCH)
        for wave, lengths in enumerate(([max(longest, 1)], [max(min(longest // size, 32), 1)] * size)):
            for i, length in enumerate(lengths):
                ids = [(wave + i + j) % self.vocab for j in range(length)]
                self.add(f"warm-up-{wave}-{i}", ids, WARM_UP_OUTPUTS)
            while self.busy:
                self.step()
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts.

        Raises:
            EngineError: while requests hold blocks.
        """
        if not self._engine.reset_prefix_cache():
            raise EngineError("the prefix cache cannot be emptied while requests are running")

    def provenance(self) -> dict[str, Any]:
        """Return what the engine runs on and how it is configured; JSON types only.

        Keys: ``vllm``, ``torch``, ``device``, ``driver`` (``None`` on a CPU), ``dtype``, ``kv_blocks``, ``block_size``,
        ``pipeline_depth`` (steps in flight at once), ``cuda_graph_sizes``, ``options`` (what was asked for) and
        ``config`` (what vLLM made of it).
        """
        import torch
        import vllm

        cache, compilation = self.config.cache_config, self.config.compilation_config
        scheduler = self.options.scheduler_cls
        options = dataclasses.replace(self.options, scheduler_cls=name_of(scheduler), additional_config={}, more={})
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            **device(torch),
            "dtype": str(self.config.model_config.dtype).removeprefix("torch."),
            "kv_blocks": int(cache.num_gpu_blocks),
            "block_size": int(cache.block_size),
            "pipeline_depth": int(getattr(self.core, "batch_queue_size", 1) or 1),
            "cuda_graph_sizes": [int(n) for n in compilation.cudagraph_capture_sizes or ()],
            "options": {
                **dataclasses.asdict(options),
                "additional_config": plain(self.options.additional_config),
                "more": plain(self.options.more),
            },
            "config": plain(self.config),
        }

    def close(self) -> None:
        """End the engine and give its memory back."""
        self._engine.engine_core.shutdown()
        del self._engine
        gc.collect()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_engine(options: EngineOptions) -> Engine:
    """Start vLLM in this process.

    Raises:
        EngineError: if vLLM is not installed or cannot start, in one sentence.
    """
    if find_spec("vllm") is None:
        raise EngineError("the real engine needs vLLM, which is not installed; pip install 'prefillsim[gpu]' brings it")
    if Path(options.model).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    elif options.model.startswith((".", "/", "~")):
        raise EngineError(f"there is no model folder {options.model}")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    on_cpu = bool(current_platform.is_cpu())
    if on_cpu:
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    arguments = options.arguments(on_cpu)
    known = {f.name for f in dataclasses.fields(EngineArgs)}
    for name in arguments.keys() - known:
        raise EngineError(f"this vLLM has no engine argument {name}")
    try:
        return Engine(LLMEngine.from_engine_args(EngineArgs(**arguments)), options)
    except Exception as e:
        if type(e).__module__.startswith("gpu_runner."):
            raise EngineError(str(e)) from e
        raise EngineError(f"vLLM cannot start {options.model}: {_reason(e)}") from e


def _reason(error: Exception) -> str:
    """Return the first sentence in an error of vLLM that says what is wrong; pydantic wraps it in lines of its own."""
    for line in str(error).splitlines():
        text = line.strip()
        if text and not text.startswith(("For further information", "1 validation error")):
            return text.removeprefix("Value error, ").partition(" [type=")[0].partition(". ")[0].rstrip(".")
    return type(error).__name__
