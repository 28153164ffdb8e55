"""KV memory of a run: as configured, and where it is not, as it follows from GPU, model and way of prefilling."""

from __future__ import annotations

from costmodels.hardware import load_gpu, load_llm
from costmodels.memory import MemoryModel
from costmodels.parallel import pcie_bytes_per_s
from experiments.config import ClusterConfig, Config, ConfigError, MemoryConfig
from sim.memory import Memory, MemoryConfigError, Regime

GIB = 2**30


def memory_model_of(config: Config) -> MemoryModel | None:
    """Return the memory model of ``[hardware]``, ``None`` where that is empty.

    Raises:
        ConfigError: if it names no GPU or no model.
        HardwareError: if it names unknown ones, or the model cannot be split so or does not fit.
    """
    hardware = config.hardware
    if not hardware.model_fields_set:
        return None
    if hardware.gpu is None or hardware.llm is None:
        given = ", ".join(f"hardware.{key}" for key in sorted(hardware.model_fields_set))
        missing = " and ".join(f"--{key}" for key in ("gpu", "llm") if getattr(hardware, key) is None)
        raise ConfigError(f"{given} needs both a GPU and a model: give {missing} too")
    return MemoryModel(
        load_llm(hardware.llm), load_gpu(hardware.gpu), hardware.mode, hardware.tp, hardware.pp, hardware.chunk
    )


def memory_of(config: Config, model: MemoryModel | None, longest_prompt: int) -> Memory | None:
    """Return the KV memory of each replica, ``None`` for unlimited memory that never hits.

    With a memory model, the profile run sets memory aside for prompts of ``memory.max_input`` tokens, or else
    ``engine.max_model_len``, or else as many as the longest has, as far as they can be prefilled at all. What is left
    are the blocks. Prompts that are longer than can be prefilled are rejected.

    Args:
        config: the configuration.
        model: of :func:`memory_model_of`.
        longest_prompt: of the trace, in tokens.

    Raises:
        ConfigError: if no such memory can exist.
        HardwareError: if prompts cannot be as long as the configuration says.
    """
    given = config.memory
    size, blocks, longest = given.block_size, given.blocks, given.max_input
    regime: Regime = given.regime or ("pool" if model is None or model.keeps_all_kv else "store")
    if model is not None:
        most = model.max_input_length(size)
        if blocks is None:
            profiled = longest or config.engine.max_model_len or min(longest_prompt, most)
            blocks = model.kv_blocks_after_profile(profiled, size)
            if regime == "store" and model.keeps_all_kv:
                # The KV of the request that is being prefilled lies outside a store.
                blocks = max(0, blocks - -(-profiled // size))
        longest = longest or most
    cached = blocks is not None if given.prefix_cache is None else given.prefix_cache
    if blocks is None and not cached and longest is None and regime == "pool" and given.suffix == "keep":
        return None
    cpu = _offloading(given, model) if given.suffix == "offload" and regime == "store" else {}
    try:
        return Memory(
            blocks=blocks,
            block_size=size,
            prefix_cache=cached or (regime == "store" and given.prefix_cache is None),
            regime=regime,
            suffix=given.suffix,
            max_input=longest,
            **cpu,
        )
    except MemoryConfigError as e:
        raise ConfigError(f"memory: {e}") from None


def describe(memory: Memory | None, cluster: ClusterConfig) -> str:
    """Return one line for people, empty for one replica with unlimited memory."""
    parts = []
    if cluster.replicas > 1:
        parts.append(f"{cluster.replicas} replicas, router {cluster.router}")
    if memory is not None:
        each = "each with " if parts else ""
        size = "unlimited" if memory.blocks is None else f"{memory.blocks:,}"
        parts.append(f"{each}a {memory.regime} of {size} KV blocks of {memory.block_size} tokens")
        parts.append("prefix cache" if memory.prefix_cache else "no prefix cache")
        if memory.suffix != "keep":
            parts.append(f"suffix {memory.suffix}")
        if memory.max_input is not None:
            parts.append(f"prompts up to {memory.max_input:,} tokens")
    return ", ".join(parts)


def _offloading(given: MemoryConfig, model: MemoryModel | None) -> dict[str, int]:
    """Return the fields of ``Memory`` that say what CPU memory there is, and how fast it is."""
    per_block, rate, latency = given.bytes_per_block, given.pcie_gb_per_s, given.pcie_latency_us
    if model is None:
        missing = [key for key in ("bytes_per_block", "pcie_gb_per_s") if getattr(given, key) is None]
        if missing:
            names = " and ".join(f"memory.{key}" for key in missing)
            raise ConfigError(f"memory: suffix=offload needs {names}, or --gpu and --llm that they follow from")
    if given.cpu_gib is None:
        raise ConfigError("memory: suffix=offload needs memory.cpu_gib, the CPU memory of each replica in GiB")
    if per_block is None and model is not None:
        per_block = given.block_size * model.kv_bytes_per_token
    bytes_per_s = pcie_bytes_per_s(model.gpu) if rate is None and model is not None else round((rate or 0) * 1e9)
    latency_ns = model.gpu.pcie_latency_ns if latency is None and model is not None else round((latency or 0) * 1e3)
    assert per_block is not None
    cpu_blocks = int(given.cpu_gib * GIB) // per_block
    if not cpu_blocks:
        raise ConfigError(f"memory: cpu_gib is {given.cpu_gib:g}, but a block takes {per_block / GIB:.3g} GiB")
    return {
        "cpu_blocks": cpu_blocks,
        "bytes_per_block": per_block,
        "pcie_bytes_per_s": bytes_per_s,
        "pcie_latency_ns": latency_ns,
    }
