"""The tensors that are alive at the peak of a prefill, one by one, from a model's shape alone.

It is what the ways of prefilling of PrefillOnly §4 need where nothing outlives its last reader, for the decoder that
transformers writes: gate and up apart, keys and values where they were made. Nothing in it is chosen.
``gpu_runner.hybrid.mil`` measures the same on running code.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.hardware import LlmShape

POSITION_BYTES = 8
"""A position is a 64-bit integer."""


@dataclass(frozen=True)
class LiveTensors:
    """One layer's tensors, all in bytes per token on one of ``tp`` GPUs.

    A prefill peaks either in attention or between two attentions, in the MLP: its MLP must be at least about twice as
    wide as the residual stream, as in all known models, or a norm's 32-bit copies would be larger.
    """

    llm: LlmShape
    tp: int = 1

    @property
    def residual(self) -> int:
        """The residual stream."""
        return self.llm.hidden * self.llm.activation_bytes

    @property
    def query(self) -> int:
        """The query; attention's output is as large."""
        return self.llm.heads * self.llm.head_dim * self.llm.activation_bytes // self.tp

    @property
    def kv(self) -> int:
        """One layer's keys and values, as they were computed."""
        return 2 * self.llm.kv_heads * self.llm.head_dim * self.llm.activation_bytes // self.tp

    @property
    def positions(self) -> int:
        """The positions, their cosines and their sines, which every layer reads."""
        return POSITION_BYTES + 2 * self.llm.head_dim * self.llm.activation_bytes

    @property
    def attention(self) -> int:
        """While attention runs: residual stream, query, key, value and output."""
        return self.residual + 2 * self.query + self.kv

    @property
    def mlp(self) -> int:
        """While the MLP runs: residual stream, gate after its activation, up, and the product of the two."""
        return self.residual + 3 * self.llm.intermediate * self.llm.activation_bytes // self.tp

    @property
    def inputs(self) -> int:
        """What a virtual layer reads: residual stream and attention's output."""
        return self.residual + self.query

    @property
    def outputs(self) -> int:
        """What it makes: the next residual stream, query, key and value."""
        return self.residual + self.query + self.kv

    def peak_bytes(self, mode: str, tokens: int, chunk: int) -> int:
        """Return what is alive at the peak of a prefill beside weights and the KV that is kept.

        Args:
            mode: one of ``costmodels.memory.MODES``.
            tokens: of the prompt.
            chunk: tokens at once in the modes that have chunks.
        """
        at_once = min(tokens, chunk) if mode == "chunked" else tokens
        if mode in ("paged", "chunked", "discard") or chunk >= tokens:
            return at_once * (self.positions + max(self.attention, self.mlp))
        return tokens * self.positions + max(tokens * self.attention, self._virtual_layer(mode, tokens, chunk))

    def _virtual_layer(self, mode: str, tokens: int, chunk: int) -> int:
        """Return what is alive while a virtual layer goes through its chunks.

        - in place: outputs only, for residual stream and query take the inputs' memory, and one chunk's MLP.
        - preallocated: inputs, all outputs, and one chunk's MLP.
        - listed: the same without the last chunk's outputs; or, once all chunks are there, inputs, outputs, and the
          widest output a second time, while its chunks are strung together.
        """
        if mode == "hybrid":
            return tokens * self.outputs + chunk * self.mlp
        both = tokens * (self.inputs + self.outputs)
        if mode == "hybrid-preallocation":
            return both + chunk * self.mlp
        return both + max(tokens * max(self.residual, self.query), chunk * (self.mlp - self.outputs))
