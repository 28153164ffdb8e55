"""The hybrid engine in the commands: how it is started, and each policy's engine in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.draft import Draft
from gpu_runner.hybrid.options import HybridOptions, open_hybrid
from gpu_runner.hybrid.sharing import shared_tokens
from gpu_runner.settings import Settings
from policies.registry import nearest
from traces.schema import Trace

if TYPE_CHECKING:
    from gpu_runner.hybrid.engine import HybridEngine

ENGINES = ("vllm", "hybrid")


def check_engine(name: str) -> None:
    """Refuse an unknown ``--engine``.

    Raises:
        ConfigError: with the nearest name.
    """
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}{nearest(name, ENGINES)} ({', '.join(ENGINES)})")


def hybrid_options(model: str, more: dict[str, Any], vllms: Mapping[str, Any], **given: Any) -> HybridOptions:
    """Return how the hybrid engine starts.

    Args:
        model: of :class:`gpu_runner.hybrid.options.HybridOptions`.
        more: of ``--engine-arg``.
        vllms: options that are vLLM's alone, by name, ``None`` where not given.
        given: other options of the engine.

    Raises:
        ConfigError: if one of vLLM's is given.
        EngineError: if an argument is wrong.
    """
    for name, value in vllms.items():
        if value is not None:
            raise ConfigError(f"{name} is vLLM's; the hybrid engine prefills one whole prompt at a time")
    return HybridOptions.of(more, model=model, **given)


def hybrid_options_of(
    draft: Draft, model: str, more: dict[str, Any], max_num_batched_tokens: int | None, **given: Any
) -> HybridOptions:
    """Return how the hybrid engine starts where a configuration says it, whose memory becomes a prefix store.

    Raises:
        ConfigError: if the configuration describes what the engine cannot be.
        EngineError: if an argument is wrong.
    """
    if draft.get("memory.regime") == "pool":
        raise ConfigError(
            f"{draft.origin('memory.regime')}: the hybrid engine has a prefix store, no pool of KV blocks"
        )
    blocks = 0 if draft.get("memory.prefix_cache") is False else draft.get("memory.blocks")
    # Cells are planned before it is known how many blocks there are.
    draft.put("memory.regime", "store", "--engine hybrid")
    draft.put("memory.blocks", blocks or 0, draft.origin("memory.blocks") if blocks else "--engine hybrid")
    draft.put("memory.prefix_cache", True, "--engine hybrid")
    config = draft.copy()
    config.take_axes()
    made = config.finish()
    if made.cluster.replicas > 1 or made.hardware.model_fields_set:
        raise ConfigError("there is one hybrid engine on the hardware that is there: leave out replicas and hardware")
    if made.memory.suffix == "offload":
        raise ConfigError("the hybrid engine keeps or discards suffixes; give --suffix keep or discard")
    if made.memory.max_input is not None:
        raise ConfigError("give --max-model-len, one more than the longest prompt, in place of --max-input")
    if made.engine.horizon is not None:
        raise ConfigError("a replay ends when its requests have: leave out the horizon, or give fewer --requests")
    if made.engine.pipeline_depth == 2:
        raise ConfigError("the hybrid engine has one step in flight: leave out --pipeline-depth")
    if made.engine.max_num_seqs not in (None, 1):
        raise ConfigError("--max-num-seqs is vLLM's; the hybrid engine serves one request at a time")
    return hybrid_options(
        model,
        more,
        {"--max-num-batched-tokens": max_num_batched_tokens},
        max_model_len=made.engine.max_model_len,
        blocks=blocks,
        block_size=made.memory.block_size,
        **given,
    )


def kept_tokens(trace: Trace, block_size: int) -> dict[str, int]:
    """Return how many first tokens of each prompt are worth storing where suffixes are discarded, by a replay's ids."""
    return {str(i): tokens for i, tokens in enumerate(shared_tokens(trace, block_size))}


def open_hybrids(
    cells: Sequence[Cell], cost_model: str | None, options: HybridOptions
) -> Iterator[tuple[Cell, HybridEngine]]:
    """Yield each cell with a hybrid engine that runs its policy and records, warmed up, and closed afterwards.

    Raises:
        ConfigError: if a request wants more than one token.
        EngineError: if an engine cannot start.
    """
    for cell in cells:
        trace = cell.source.load(cell.seed)
        outputs = int(trace.output_tokens.max(initial=1))
        if outputs > 1:
            raise ConfigError(
                f"the hybrid engine answers with one token, but a request of {cell.source.label} wants {outputs}: "
                "give a prefill-only trace, like --workload post-recommendation"
            )
        discard = cell.memory is not None and cell.memory.suffix == "discard"
        settings = Settings(
            policy=cell.label, cost_model=cost_model, slo=str(cell.objectives), discard=discard, record=True
        )
        with open_hybrid(options, settings) as engine:
            if discard:
                engine.keep_tokens = kept_tokens(trace, engine.runner.block_size)
            engine.warm_up()
            yield cell, engine
