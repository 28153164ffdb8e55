"""The real vLLM scheduler and KV-cache manager on a virtual clock, with a stub in place of the model.

``EngineCore``'s own ``step`` and ``step_with_batch_queue`` drive it; only the executor is ours. It charges what a cost
model says and samples tokens that no other request has, so thousands of steps pass in a second, and what the scheduler
decides can be compared with the simulator batch by batch.
"""

from __future__ import annotations

import queue
import tempfile
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from costmodels.base import CostModel
from gpu_runner.identity import Batch
from gpu_runner.model import tiny_llama
from gpu_runner.prompts import prompt_ids
from gpu_runner.replay import objective_arguments
from gpu_runner.scheduler import PolicyScheduler
from sim.tables import LoggedRun
from traces.schema import Trace

VOCAB = 1 << 20
OUTPUT_IDS = 1 << 21
"""Sampled tokens are at or above this, so no prompt has one."""
LONGEST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class OracleOptions:
    """How the real scheduler is set up."""

    blocks: int
    """Of the pool, vLLM's null block included."""
    block_size: int = 16
    prefix_cache: bool = True
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int = LONGEST
    pipeline_depth: int = 1
    additional: dict[str, Any] | None = None
    """vLLM's ``additional_config``; ``None`` runs vLLM's own scheduler."""


class _Later:
    """A result that is there at a time of the virtual clock; to ask for it is to wait."""

    def __init__(self, oracle: Oracle, at: int, value: Any) -> None:
        self._oracle, self._at, self._value = oracle, at, value

    def result(self) -> Any:
        self._oracle.now = max(self._oracle.now, self._at)
        return self._value

    def done(self) -> bool:
        return self._oracle.now >= self._at


class _Stub:
    """An executor without a model."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._pending: _Later | None = None
        self._busy_until = 0

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        oracle = self._oracle
        if not scheduler_output.num_scheduled_tokens:
            return _Later(oracle, 0, EMPTY_MODEL_RUNNER_OUTPUT)
        start = max(oracle.now, self._busy_until)
        duration = oracle.cost.step_ns(*oracle.features(scheduler_output))
        self._busy_until = start + duration
        oracle.note(scheduler_output, start, duration)
        self._pending = _Later(oracle, start + duration, oracle.sample(scheduler_output))
        return _Later(oracle, 0, None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        pending, self._pending = self._pending, None
        assert pending is not None
        return pending if non_block else pending.result()


class _Core(EngineCore):
    """vLLM's engine core around a scheduler and a stub."""

    def __init__(self, config: Any, scheduler: Any, executor: _Stub) -> None:
        self.vllm_config = config
        self.scheduler = scheduler
        self.model_executor = executor
        self.log_stats = False
        self.is_mm_encoder_only = self.is_pooling_model = False
        self.check_for_draft_tokens = self.use_spec_decode = False
        self.async_scheduling = config.scheduler_config.async_scheduling
        self._weight_version = "default"
        self.aborts_queue: queue.Queue[list[str]] = queue.Queue()
        self.batch_queue_size = config.max_concurrent_batches
        self.batch_queue: deque[Any] | None = deque(maxlen=self.batch_queue_size) if self.batch_queue_size > 1 else None
        self.step_fn = self.step if self.batch_queue is None else self.step_with_batch_queue


class Oracle:
    """One run of a trace through the real scheduler.

    Args:
        trace: the requests; prompts are made from its content.
        cost: what steps take.
        options: how vLLM is set up.
    """

    def __init__(self, trace: Trace, cost: CostModel, options: OracleOptions) -> None:
        self.trace, self.cost, self.options = trace, cost, options
        self.now = 0
        self.batches: list[Batch] = []
        config = engine_config(options)
        self.scheduler = _scheduler(config, options)
        if isinstance(self.scheduler, PolicyScheduler):
            self.scheduler.clock = lambda: self.now
        self.core = _Core(config, self.scheduler, _Stub(self))
        self._numbers = {str(i): i for i in range(len(trace))}
        self._sampled = [0] * len(trace)
        self._hasher: Any = None
        if options.prefix_cache:
            hash_fn = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
            init_none_hash(hash_fn)
            self._hasher = get_request_block_hasher(options.block_size, hash_fn)
        self._decided = 0
        # Preempted since the last step with work.
        self._lost: set[int] = set()
        schedule = self.scheduler.schedule

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._decided = self.now
            output = schedule(*args, **kwargs)
            self._lost |= {self._numbers[i] for i in output.preempted_req_ids or ()}
            return output

        self.scheduler.schedule = noting

    def run(self) -> list[Batch]:
        """Give the requests as they arrive, until all have left; return the steps with work, in order."""
        core, scheduler = self.core, self.scheduler
        arrivals = self.trace.arrival_ns.tolist()
        came = 0
        while True:
            while came < len(arrivals) and arrivals[came] <= self.now:
                scheduler.add_request(self._request(came))
                came += 1
            if not scheduler.has_requests() and not core.batch_queue:
                if came == len(arrivals):
                    return self.batches
                self.now = arrivals[came]
                continue
            core.step_fn()

    def recorded(self) -> tuple[Trace, LoggedRun]:
        """Return what our scheduler has recorded of the run, as the simulator's tables."""
        assert isinstance(self.scheduler, PolicyScheduler)
        return self.scheduler.finish_recording().run(self.trace)

    def _request(self, i: int) -> Request:
        trace = self.trace
        params = SamplingParams(
            ignore_eos=True, max_tokens=int(trace.output_tokens[i]), extra_args=objective_arguments(trace, i) or None
        )
        return Request(
            request_id=str(i),
            prompt_token_ids=prompt_ids(trace, i, VOCAB),
            sampling_params=params,
            pooling_params=None,
            arrival_time=int(trace.arrival_ns[i]) / 1e9,
            block_hasher=self._hasher,
        )

    def features(self, output: Any) -> tuple[int, int, int, int, int, int]:
        """Return the step features of a batch, read from vLLM's own state alone."""
        n = context = height = prefills = tokens = pairs = 0
        for request_id, c in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            before = request.num_computed_tokens - c
            if c == 1 and before >= request.num_prompt_tokens and not request.is_prefill_chunk:
                n += 1
                context += before
                height = max(height, before)
            else:
                prefills += 1
                tokens += c
                pairs += c * before + c * (c + 1) // 2
        return n, context, height, prefills, tokens, pairs

    def note(self, output: Any, start: int, duration: int) -> None:
        """Keep a step with work."""
        requests = tuple((self._numbers[i], c) for i, c in output.num_scheduled_tokens.items())
        self.batches.append(Batch(self._decided, start, duration, requests, tuple(sorted(self._lost))))
        self._lost = set()

    def sample(self, output: Any) -> ModelRunnerOutput:
        """Return a token for each request that has computed all it had, unlike any other token."""
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in ids:
            if self.scheduler.requests[request_id].is_prefill_chunk:
                sampled.append([])
                continue
            i = self._numbers[request_id]
            sampled.append([OUTPUT_IDS + i * LONGEST + self._sampled[i]])
            self._sampled[i] += 1
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: at for at, r in enumerate(ids)}, sampled_token_ids=sampled
        )


@cache
def _model_folder() -> str:
    folder = tempfile.mkdtemp(prefix="prefillsim-oracle-")
    tiny_llama(Path(folder), layers=1, hidden=64, max_len=LONGEST)
    return folder


def engine_config(options: OracleOptions) -> Any:
    """Return vLLM's configuration of a server with these options; no model is loaded."""
    config = EngineArgs(
        model=_model_folder(),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        block_size=options.block_size,
        enable_prefix_caching=options.prefix_cache,
        async_scheduling=False,
        scheduler_cls=None if options.additional is None else PolicyScheduler,
        additional_config=options.additional or {},
    ).create_engine_config()
    # The CPU platform switches it off; the scheduler does not care what would run its batches.
    config.scheduler_config.async_scheduling = options.pipeline_depth == 2
    config.cache_config.num_gpu_blocks = options.blocks
    return config


def _scheduler(config: Any, options: OracleOptions) -> Any:
    spec = FullAttentionSpec(block_size=options.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=options.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=options.block_size,
        hash_block_size=options.block_size,
        log_stats=False,
    )
