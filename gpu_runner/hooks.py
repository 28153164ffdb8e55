"""Where prefillsim touches vLLM's scheduler: every name of ``vllm.v1`` that is used, and what must be true of it.

vLLM says of this interface that it is not public. So nothing of it is copied: :mod:`gpu_runner.scheduler` subclasses
and wraps, this file holds all that it reaches for, and :func:`check` refuses to start where a name is missing or a
feature is on that the policies' views do not know. ``tests/oracle/test_hooks.py`` tests each hook against the real
scheduler.

The hooks are (a) ``Scheduler.waiting``, replaced by a :class:`RequestQueue` of our own; (b)
``max_num_scheduled_tokens``, read once per step; (c) ``RequestQueue.__bool__``, asked before each admission; (d)
``_reserve_prefill_lookahead``, which may lower a request's tokens just before its blocks are taken; (e) prefix lookup
without side effects; (f) the block pool's own events; (g) ``evict_blocks`` before a request's blocks are given back.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any

from vllm import __version__ as vllm_version
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

__all__ = [
    "AsyncScheduler",
    "Listener",
    "Request",
    "RequestQueue",
    "Scheduler",
    "UnsupportedError",
    "aborted_output",
    "add_output",
    "check",
    "check_kv_cache",
    "evict_beyond",
    "finish_aborted",
    "free_blocks",
    "hit_blocks",
    "is_aborted",
    "is_ending",
    "vllm_version",
    "watched_hashes",
]

SUPPORTED = ("0.32", "0.33")
"""Releases whose scheduler has been read and has these hooks; the tests run on the first."""

HOOKS: tuple[tuple[type, str, tuple[str, ...]], ...] = (
    (Scheduler, "schedule", ("self",)),
    (Scheduler, "update_from_output", ("self", "scheduler_output", "model_runner_output")),
    (Scheduler, "add_request", ("self", "request")),
    (Scheduler, "finish_requests", ("self", "request_ids", "finished_status")),
    (Scheduler, "_free_request", ("self", "request")),
    (
        Scheduler,
        "_reserve_prefill_lookahead",
        ("self", "request", "num_computed_tokens", "num_new_tokens"),
    ),
    (AsyncScheduler, "_update_after_schedule", ("self", "scheduler_output")),
)
"""Methods that are overridden, with the parameters that they must have."""

QUEUE_METHODS = {
    "add_request",
    "pop_request",
    "peek_request",
    "prepend_request",
    "prepend_requests",
    "remove_request",
    "remove_requests",
    "__bool__",
    "__len__",
    "__iter__",
}


class UnsupportedError(ValueError):
    """A vLLM, or an option of it, that the policies cannot work with; the message says what to change."""


def check(vllm_config: Any) -> None:
    """Refuse a vLLM that lacks a hook, or a configuration with a feature that policies know nothing of.

    Raises:
        UnsupportedError: in one sentence, with what to change.
    """
    check_version(vllm_version)
    for owner, name, parameters in HOOKS:
        method = getattr(owner, name, None)
        if method is None or not set(parameters) <= set(inspect.signature(method).parameters):
            raise UnsupportedError(
                f"vLLM {vllm_version} has changed {owner.__name__}.{name}, which prefillsim builds on; "
                f"use vLLM {' or '.join(SUPPORTED)}"
            )
    unknown = set(getattr(RequestQueue, "__abstractmethods__", ())) ^ QUEUE_METHODS
    if unknown:
        raise UnsupportedError(
            f"vLLM {vllm_version} has changed RequestQueue ({', '.join(sorted(unknown))}); "
            f"use vLLM {' or '.join(SUPPORTED)}"
        )
    for problem in _unsupported(vllm_config):
        raise UnsupportedError(f"prefillsim's scheduler does not support {problem}")


def check_version(version: str) -> None:
    """Refuse releases whose scheduler has not been read.

    Raises:
        UnsupportedError: in one sentence.
    """
    if not any(version == s or version.startswith(s + ".") for s in SUPPORTED):
        raise UnsupportedError(
            f"vLLM is {version}, but prefillsim's scheduler is made for {' and '.join(SUPPORTED)}: install one of these"
        )


def _unsupported(config: Any) -> Iterator[str]:
    parallel, scheduler, model = config.parallel_config, config.scheduler_config, config.model_config
    if parallel.pipeline_parallel_size > 1:
        yield "pipeline parallelism: leave --pipeline-parallel-size at 1"
    if parallel.data_parallel_size > 1:
        yield "data parallelism: run one server per replica, without --data-parallel-size"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism: leave its sizes at 1"
    if config.speculative_config is not None:
        yield "speculative decoding: leave out --speculative-config"
    if config.kv_transfer_config is not None:
        yield "KV connectors: leave out --kv-transfer-config"
    if config.ec_transfer_config is not None:
        yield "encoder-cache connectors: leave out --ec-transfer-config"
    if config.lora_config is not None:
        yield "LoRA: leave out --enable-lora"
    if scheduler.policy != "fcfs":
        yield f"--scheduling-policy {scheduler.policy}: the policy takes its place, so leave it at fcfs"
    if not scheduler.enable_chunked_prefill:
        yield "chunked prefill switched off: leave out --no-enable-chunked-prefill; the policy full does not chunk"
    if scheduler.long_prefill_token_threshold:
        yield "--long-prefill-token-threshold: the policy decides, for example token-budget:threshold=N"
    if model.runner_type == "pooling":
        yield "pooling models: only generation is scheduled"
    if model.is_encoder_decoder:
        yield "encoder-decoder models"
    if model.supports_multimodal_inputs:
        yield "multimodal models: set their --limit-mm-per-prompt to 0 where they have a text-only mode"
    if model.is_hybrid or model.is_attention_free:
        yield "hybrid and attention-free models, whose memory is not blocks of KV"


def check_kv_cache(kv_cache_config: Any) -> None:
    """Refuse models whose layers keep KV in different ways.

    Raises:
        UnsupportedError: in one sentence.
    """
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or getattr(groups[0].kv_cache_spec, "sliding_window", None):
        raise UnsupportedError(
            "prefillsim's scheduler does not support sliding windows or several kinds of KV cache in one model"
        )


def hit_blocks(scheduler: Any, request: Any) -> list[Any]:
    """Return the cached blocks that a request would hit now, without touching them or the statistics."""
    manager = scheduler.kv_cache_manager
    if not manager.enable_caching or request.skip_reading_prefix_cache:
        return []
    found = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
    blocks: list[Any] = found[0][0]
    return blocks


def free_blocks(scheduler: Any) -> int:
    """Return how many blocks can be taken now, cached ones that nobody holds included."""
    free: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return free


def is_ending(request: Any) -> bool:
    """Return whether a running request's last token is in flight, so that it is not scheduled again."""
    placeholders = request.num_output_placeholders
    return bool(
        placeholders > 0
        and request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
    )


def is_aborted(request: Any) -> bool:
    """Return whether a request that leaves was broken off."""
    return bool(request.status == RequestStatus.FINISHED_ABORTED)


class Listener:
    """Stands in for a scheduler's event publisher, notes which blocks were stored or evicted, and passes events on.

    The block pool is made to note what it does whether or not the user publishes such events.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._publisher = scheduler.kv_event_publisher
        self._wanted = scheduler.enable_kv_cache_events
        self._changed: list[Any] = []
        scheduler.kv_cache_manager.block_pool.enable_kv_cache_events = True
        scheduler.kv_event_publisher = self

    def publish(self, batch: Any) -> None:
        """Note a batch of events, and publish it where the user wants that."""
        for event in batch.events:
            if isinstance(event, BlockStored | BlockRemoved):
                self._changed += event.block_hashes
            elif isinstance(event, AllBlocksCleared):
                self._changed.append(None)
        if self._wanted:
            self._publisher.publish(batch)

    def take(self) -> list[Any]:
        """Return the hashes of blocks stored or evicted since the last call; ``None`` stands for a cleared cache.

        Those of a step in flight are among them: vLLM would hand them over with its output.
        """
        events = self._scheduler.kv_cache_manager.take_events()
        if events:
            self.publish(KVEventBatch(ts=time.time(), events=events))
        changed, self._changed = self._changed, []
        return changed

    def shutdown(self) -> None:
        """Shut the user's publisher down."""
        self._publisher.shutdown()

    def get_publisher_config(self) -> Any:
        """Return the user's publisher's configuration."""
        return self._publisher.get_publisher_config()


def watched_hashes(request: Any) -> list[Any]:
    """Return the hashes under which events name a request's full blocks, first block first."""
    return [maybe_convert_block_hash(h) for h in request.block_hashes]


def evict_beyond(scheduler: Any, request: Any, keep: int) -> None:
    """Forget the content of a finishing request's blocks from block ``keep`` on, where nobody else holds them.

    Once given back they are at the front of the free list, so they are taken before anything that can be hit.
    """
    pool = scheduler.kv_cache_manager.block_pool
    (ids,) = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    pool.evict_blocks({i for i in ids[keep:] if pool.blocks[i].ref_cnt == 1})


def finish_aborted(scheduler: Any, request: Any) -> None:
    """End a request that was not let in."""
    scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)


def aborted_output(request: Any) -> Any:
    """Return what tells the front end that a request has ended without a token."""
    return EngineCoreOutput(request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ABORT)


def add_output(outputs: Any, client: int, output: Any) -> None:
    """Add an output to what a step returns to one client."""
    if client not in outputs:
        outputs[client] = EngineCoreOutputs()
    outputs[client].outputs.append(output)
