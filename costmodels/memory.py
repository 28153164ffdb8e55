"""How much GPU memory prefilling takes: the maximum input length, and what is left for the prefix cache.

The constants below, with the ways of prefilling that ``experiments.prefillonly.table2`` gives the parallel baselines,
are all that is free. ``UTILISATION``, ``RESERVED_BYTES`` and ``KEPT`` were chosen by looking at the paper's Table 2;
``LINKED_BYTES`` and ``CHUNK`` come from vLLM. Everything else follows from shapes and data sheets.

Activations are counted in one of two ways (:data:`ACCOUNTINGS`): as the paper's engine must have held them, or as the
technique needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from costmodels.hardware import Gpu, HardwareError, LlmShape
from costmodels.live_tensors import LiveTensors

UTILISATION = Fraction(19, 20)
"""Share of the GPU's memory an engine may use. vLLM's default, 0.9, cannot be the paper's: on all three GPUs the KV of
the longest chunked prefill in Table 2 would not fit beside the weights."""

RESERVED_BYTES = 400 * 2**20
"""What CUDA itself takes (context, kernels, workspaces), in bytes per GPU."""

LINKED_BYTES = 1833 * 2**20
"""What communication takes besides, in bytes per GPU, as soon as there are two: 1.79 GiB is the difference in
``non_torch_memory`` between one and two GPUs in the profiling logs of vLLM pull request 10511."""

CHUNK = 2048
"""Tokens that chunked and hybrid prefilling put through the linear layers at once; vLLM's default budget."""

KEPT = 2
"""Tensors of hidden width over all tokens that hybrid prefilling keeps alive beside those that the computation needs
(the compiled graph's inputs, and copies made for contiguity)."""

ACCOUNTINGS = ("paper", "tensors")
"""How activations are counted. ``paper``: as a compiled vLLM must have held them for the paper's Table 2, with fused
projections, the MLP's input and output beside its intermediates, KV copied to a cache's layout, and ``KEPT`` more.
``tensors``: what the technique needs and no more, see :mod:`costmodels.live_tensors`; no constant is free in it."""

MODES = ("paged", "chunked", "discard", "hybrid-chunking", "hybrid-preallocation", "hybrid")


@dataclass(frozen=True)
class MemoryModel:
    """The memory of one GPU of ``tp * pp`` while a prompt is prefilled. All sizes are bytes per GPU.

    Modes (PrefillOnly §4 and §5):

    - ``paged``: the whole prompt in one pass; KV of every layer, intermediates of every token.
    - ``chunked``: ``chunk`` tokens a pass; KV of every layer, intermediates of one chunk.
    - ``discard``: as ``paged``, but the KV of one layer at a time.
    - ``hybrid-chunking``: linear layers by chunks, attention whole, the KV of one layer at a time; the chunks' outputs
      are listed and then concatenated.
    - ``hybrid-preallocation``: outputs are written into tensors allocated before.
    - ``hybrid``: and written over the inputs where the shapes are equal. This is PrefillOnly.

    ``accounting`` is one of :data:`ACCOUNTINGS`; ``kept`` has no meaning in ``tensors``.

    Raises:
        HardwareError: if the mode or the accounting is unknown, or the model cannot be split so, or does not fit the
            GPU at all.
    """

    llm: LlmShape
    gpu: Gpu
    mode: str = "paged"
    tp: int = 1
    pp: int = 1
    chunk: int = CHUNK
    utilisation: Fraction = UTILISATION
    reserved_bytes: int = RESERVED_BYTES
    linked_bytes: int = LINKED_BYTES
    kept: int = KEPT
    accounting: str = "paper"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise HardwareError(f"unknown memory mode {self.mode!r} (modes: {', '.join(MODES)})")
        if self.accounting not in ACCOUNTINGS:
            raise HardwareError(f"unknown accounting {self.accounting!r} (accountings: {', '.join(ACCOUNTINGS)})")
        for name in ("tp", "pp", "chunk"):
            if getattr(self, name) < 1:
                raise HardwareError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.llm.kv_heads % self.tp or self.llm.intermediate % self.tp or self.llm.vocab % self.tp:
            raise HardwareError(
                f"tp={self.tp} does not divide the {self.llm.kv_heads} KV heads, the MLP and the vocabulary of "
                f"{self.llm.name}; 2 does for every model that is shipped"
            )
        if self.pp > self.llm.layers:
            raise HardwareError(f"pp={self.pp} has more stages than {self.llm.name} has layers ({self.llm.layers})")
        if not 0 < self.utilisation <= 1:
            raise HardwareError(f"the usable share of memory is {self.utilisation}; it must lie above 0 and at most 1")
        if self.room_bytes < 0:
            raise HardwareError(
                f"{self.llm.name} does not fit {self.gpu.name} with tp={self.tp}, pp={self.pp}: weights take "
                f"{self.weight_bytes / 2**30:.1f} GiB of the {self.usable_bytes / 2**30:.1f} GiB that can be used"
            )

    @property
    def layers(self) -> int:
        """Layers of the largest pipeline stage."""
        return -(-self.llm.layers // self.pp)

    @property
    def usable_bytes(self) -> int:
        """Memory for weights, KV and activations."""
        linked = self.linked_bytes if self.tp * self.pp > 1 else 0
        return int(self.gpu.memory_bytes * self.utilisation) - self.reserved_bytes - linked

    @property
    def weight_bytes(self) -> int:
        """Weights of the largest stage: the embedding is on the first, the head on the last."""
        llm = self.llm
        ends = (llm.embedding_parameters, llm.head_parameters or llm.embedding_parameters)
        outer = max(ends) if self.pp > 1 else llm.embedding_parameters + llm.head_parameters
        linear = self.layers * llm.linear_parameters_per_layer * llm.linear_bytes
        return -(-(linear + 2 * outer) // self.tp) + 2 * -(-llm.other_parameters // self.pp)

    @property
    def room_bytes(self) -> int:
        """What the weights leave for KV and activations."""
        return self.usable_bytes - self.weight_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of one token in all the layers that this GPU has."""
        return self.layers * self.layer_kv_bytes_per_token

    @property
    def layer_kv_bytes_per_token(self) -> int:
        """KV of one token in one layer."""
        return self.llm.kv_bytes_per_token_and_layer // self.tp

    @property
    def keeps_all_kv(self) -> bool:
        """Whether a prompt's KV of every layer must be in the cache until its prefill ends."""
        return self.mode in ("paged", "chunked")

    @property
    def dense_bytes_per_token(self) -> int:
        """Activations of one token that goes through a layer as a whole, in ``paper``: the wider of MLP and attention.

        MLP: residual, input and output (and a copy from the all-reduce), and both intermediates. Attention:
        residual and input, fused query, key and value, and output.
        """
        h = self.llm.hidden * self.llm.activation_bytes
        mlp = (3 + (self.tp > 1)) * h + self._intermediates_per_token
        attention = 2 * h + (self.llm.qkv * self.llm.activation_bytes) // self.tp + self._query_bytes
        return max(mlp, attention)

    @property
    def hybrid_bytes_per_token(self) -> int:
        """Activations of one token that hybrid prefilling holds over the whole prompt, in ``paper``, without KV.

        Residual, fused query, key and value, attention's output, and ``kept`` tensors more; without in-place
        computation the linear layers' output beside their input; without preallocation that output twice.
        """
        h = self.llm.hidden * self.llm.activation_bytes
        extra = {"hybrid": 0, "hybrid-preallocation": 1, "hybrid-chunking": 2}[self.mode]
        return (1 + self.kept + extra) * h + (self.llm.qkv * self.llm.activation_bytes) // self.tp + self._query_bytes

    @property
    def _intermediates_per_token(self) -> int:
        return (self.llm.mlp_up_bytes_per_token + self.llm.mlp_down_bytes_per_token) // self.tp

    @property
    def _query_bytes(self) -> int:
        return self.llm.heads * self.llm.head_dim * self.llm.activation_bytes // self.tp

    def working_bytes(self, tokens: int) -> int:
        """Return the memory beside weights and KV cache that prefilling ``tokens`` takes at its peak.

        It includes one layer's KV in the modes that hold no more than that.
        """
        if self.accounting == "tensors":
            return LiveTensors(self.llm, self.tp).peak_bytes(self.mode, tokens, self.chunk)
        if self.mode == "paged":
            return tokens * self.dense_bytes_per_token
        if self.mode == "chunked":
            return min(tokens, self.chunk) * self.dense_bytes_per_token
        layer = tokens * self.layer_kv_bytes_per_token
        if self.mode == "discard":
            return layer + tokens * self.dense_bytes_per_token
        chunk = min(tokens, self.chunk) * self._intermediates_per_token
        return layer + tokens * self.hybrid_bytes_per_token + chunk

    def peak_bytes(self, tokens: int, block_size: int = 16) -> int:
        """Return what prefilling ``tokens`` takes in all beside the weights, KV in whole blocks.

        vLLM's pool has one block more than a request can use.
        """
        blocks = -(-tokens // block_size) + 1 if self.keeps_all_kv else 0
        return self.working_bytes(tokens) + blocks * block_size * self.kv_bytes_per_token

    def max_input_length(self, block_size: int = 16) -> int:
        """Return the most tokens that can be prefilled, 0 if none (PrefillOnly Table 2).

        It is what vLLM's profile run and its check for one request of full length let pass.
        """
        room = self.room_bytes
        return _most(lambda n: self.peak_bytes(n, block_size) <= room)

    def kv_blocks_after_profile(self, max_length: int, block_size: int = 16) -> int:
        """Return the KV blocks that are left once the profile run of ``max_length`` tokens has set its memory aside.

        In ``paged`` and ``chunked`` they are vLLM's one pool, which running requests use too; in the other modes
        they hold nothing but the prefix cache.

        Raises:
            HardwareError: if ``max_length`` is not positive or above the maximum input length.
        """
        longest = self.max_input_length(block_size)
        if not 1 <= max_length <= longest:
            raise HardwareError(
                f"{max_length} tokens cannot be prefilled ({self.mode}, {self.llm.name}, {self.gpu.name}, "
                f"tp={self.tp}, pp={self.pp}); the length must lie between 1 and {longest}"
            )
        return (self.room_bytes - self.working_bytes(max_length)) // (block_size * self.kv_bytes_per_token)


def _most(fits: Callable[[int], bool]) -> int:
    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while low + 1 < high:
        mid = (low + high) // 2
        low, high = (mid, high) if fits(mid) else (low, mid)
    return low
