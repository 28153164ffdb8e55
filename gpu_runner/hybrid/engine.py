"""The hybrid engine: one prompt at a time, in a policy's order, from the prefix store to the answer's probabilities."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from gpu_runner.clock import Clock
from gpu_runner.described import device as described_device
from gpu_runner.described import plain
from gpu_runner.engine import EngineError
from gpu_runner.hybrid.budget import blocks_beside
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import Switches
from gpu_runner.hybrid.loading import device_of, load_model
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.hybrid.prefill import Prefiller
from gpu_runner.hybrid.prefixstore import PrefixStore, Shape
from gpu_runner.hybrid.scheduler import Ended, HybridScheduler, Prompt, Served, block_hashes
from gpu_runner.hybrid.scoring import Question, answer
from gpu_runner.settings import Settings, Wishes
from sim.limits import Limits
from sim.memory import Memory

GIB = 1 << 30
GPU_SHARE = 0.9
CPU_GIB = 2.0
WARM_UPS = 2


class HybridEngine:
    """A model that answers with one token, and the scheduler in front of it; see :func:`open_hybrid`.

    It has what a replay needs of an engine (:class:`gpu_runner.replay.Host`). :meth:`add` and :meth:`abort` may be
    called from any thread, all else from one.

    Raises:
        HybridError: if the model cannot be loaded or run, or its longest prompt does not fit.
        SettingsError: if the policy cannot be used.
    """

    def __init__(self, options: HybridOptions, settings: Settings, clock: Clock | None = None) -> None:
        self.options = options
        device = device_of(options)
        model = load_model(options, device)
        self.config = model.config.get_text_config()
        longest = int(getattr(self.config, "max_position_embeddings", 0)) or None
        self.max_model_len = options.max_model_len or longest or 0
        if not self.max_model_len or (longest is not None and self.max_model_len > longest):
            raise HybridError(f"max_model_len is {self.max_model_len}; the model knows {longest} positions")
        self.vocab = int(self.config.vocab_size)
        self.runner = ModelRunner(model, options, self.max_model_len)
        self.scheduler = HybridScheduler(settings, self.runner, clock)
        self.answers: dict[str, Ended] = {}
        """What requests with a question have got, by their ids, until somebody takes it out."""
        self.keep_tokens: Mapping[str, int] = {}
        """Leading tokens worth storing where suffixes are discarded, by the ids of requests that do not say so."""
        self._asking: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""
        return self.scheduler.busy

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int = 1,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
        question: Question | None = None,
    ) -> None:
        """Hand in a request.

        Args:
            request_id: unique among those under way.
            ids: the prompt's tokens.
            max_tokens: 1.
            arrival_ns: when it arrived, on the clock of ``time.time_ns``; now by default.
            extra_args: of :class:`gpu_runner.settings.Wishes`.
            question: what is asked; its answer is kept in ``answers``. Without one nobody can ask later.

        Raises:
            HybridError: if it can never run.
            SettingsError: if a wish is not what it should be.
        """
        if max_tokens != 1:
            raise HybridError(f"{max_tokens} output tokens are asked for; the hybrid engine answers with one")
        if not ids:
            raise HybridError("the prompt is empty; it must have at least one token")
        if len(ids) + 1 > self.max_model_len:
            raise HybridError(f"{len(ids)} prompt and 1 output tokens exceed max_model_len {self.max_model_len}")
        if question is not None:
            question.check(self.vocab)
        wishes = Wishes.of(extra_args)
        if wishes.keep_tokens is None and request_id in self.keep_tokens:
            wishes = dataclasses.replace(wishes, keep_tokens=self.keep_tokens[request_id])
        arrival = self.scheduler.clock() if arrival_ns is None else arrival_ns
        if question is not None:
            self._asking.add(request_id)
        hashes = block_hashes(ids, self.runner.block_size)
        self.scheduler.add(Prompt(request_id, ids, arrival, wishes, question or Question(), hashes))

    def step(self) -> list[str]:
        """Serve one request, and return the ids of those that have left, turned away and aborted ones too."""
        ended = self.scheduler.step()
        for end in ended:
            if end.request_id in self._asking:
                self._asking.discard(end.request_id)
                self.answers[end.request_id] = end
        return [end.request_id for end in ended]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests that still wait."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def warm_up(self) -> None:
        """Run the longest prompt and a short one, so that nothing is compiled or allocated later."""
        for tokens in (self.max_model_len - 1, min(16, self.max_model_len - 1)) * WARM_UPS:
            self.runner.serve([i % self.vocab for i in range(tokens)], tokens, Question())
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Forget all stored prefixes.

        Raises:
            EngineError: while requests wait.
        """
        if self.busy:
            raise EngineError("the prefix store cannot be emptied while requests wait")
        self.runner.empty()

    @property
    def simulated(self) -> tuple[Limits, Memory]:
        """The engine's limits and prefix store as the simulator has them."""
        memory = Memory(
            regime="store",
            blocks=self.runner.store.capacity,
            block_size=self.runner.block_size,
            suffix="discard" if self.scheduler.settings.discard else "keep",
        )
        return Limits(max_num_seqs=1, max_model_len=self.max_model_len), memory

    @property
    def gpus(self) -> list[str]:
        """UUIDs of the NVIDIA GPUs that it uses; none on a CPU."""
        if self.runner.device.type != "cuda":
            return []
        return [f"GPU-{torch.cuda.get_device_properties(self.runner.device).uuid}"]

    def provenance(self) -> dict[str, Any]:
        """Return what the engine runs on and how it is configured; JSON types only."""
        device = described_device(torch)
        if self.runner.device.type == "cpu" and torch.cuda.is_available():
            device = {"device": "cpu", "driver": None}
        return {
            "torch": torch.__version__,
            "transformers": version("transformers"),
            **device,
            "threads": torch.get_num_threads(),
            "dtype": str(self.runner.store.shape.dtype).removeprefix("torch."),
            "kv_blocks": self.runner.store.capacity,
            "block_size": self.runner.block_size,
            "pipeline_depth": 1,
            "suffix": "discard" if self.scheduler.settings.discard else "keep",
            "max_model_len": self.max_model_len,
            "options": dataclasses.asdict(self.options),
            "config": plain(self.config),
        }

    def close(self) -> None:
        """Give the memory back."""
        del self.runner, self.scheduler
        gc.collect()

    def __enter__(self) -> HybridEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ModelRunner:
    """A model and its prefix store, as :class:`gpu_runner.hybrid.scheduler.Runner`.

    Args:
        model: a causal language model of transformers.
        options: chunk, block size, memory.
        longest: tokens of a request; the profile run sets memory for one prefill of so many aside.
    """

    def __init__(self, model: Any, options: HybridOptions, longest: int) -> None:
        self.prefiller = Prefiller(model, Switches(options.chunk or None, compiled=options.compiled))
        self.device = self.prefiller.device
        config = model.config.get_text_config()
        heads = int(config.num_attention_heads)
        self.block_size = options.block_size
        self._shape = Shape(
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            dtype=model.get_output_embeddings().weight.dtype,
            size=options.block_size,
        )
        blocks = options.blocks
        if blocks is None:
            blocks = blocks_beside(self.prefiller, longest, _room(options, self.device), self._shape)
        self.store = PrefixStore(self._shape, blocks, str(self.device))

    @property
    def blocks(self) -> int:
        """Blocks that are stored."""
        return len(self.store)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens are stored; no side effect."""
        return self.store.cached_tokens(ids)

    def serve(self, ids: Sequence[int], keep: int, question: Question) -> Served:
        """Prefill a prompt, and store its first ``keep`` tokens in whole blocks."""
        before = len(self.store)
        with self.store.open(ids, keep) as entry:
            new = torch.tensor(ids[entry.tokens :], dtype=torch.long, device=self.device)
            logits = self.prefiller.prefill(
                new,
                prefix=entry if entry.tokens else None,
                keep=entry.keep,
                sink=entry if entry.keep else None,
            )
            told = answer(logits.float().cpu().numpy(), question, entry.tokens)
        evicted = before + entry.keep // self.block_size > self.store.capacity
        return Served(entry.tokens, entry.tokens + entry.keep, evicted, told)

    def empty(self) -> None:
        """Forget all stored prefixes."""
        capacity = self.store.capacity
        del self.store
        self.store = PrefixStore(self._shape, capacity, str(self.device))


def _room(options: HybridOptions, device: Any) -> int:
    """Return the bytes for working memory and prefix store."""
    if options.memory_gib is not None:
        return int(options.memory_gib * GIB)
    if device.type != "cuda":
        return int(CPU_GIB * GIB)
    total = torch.cuda.get_device_properties(device).total_memory
    return int(GPU_SHARE * total) - torch.cuda.memory_allocated(device)
