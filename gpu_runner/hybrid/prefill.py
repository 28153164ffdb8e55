"""Prefill of one request: from a cached prefix to the next token's logits, keeping the KV that is worth it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch

from gpu_runner.hybrid.attention import KV, causal_attention
from gpu_runner.hybrid.capture import capture
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import Attend, Executor, Switches
from gpu_runner.hybrid.stages import plan

Sink = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called with layer, keys and values of the tokens to keep, as soon as that layer's attention is done."""


class Prefix(Protocol):
    """The KV of the tokens before the new ones."""

    @property
    def tokens(self) -> int:
        """How many there are."""
        ...

    def layer(self, layer: int) -> KV:
        """Return one layer's keys and values on the model's device, each [1, KV heads, tokens, d]."""
        ...


class Kept:
    """KV that a prefill has kept: a sink while it runs, a prefix afterwards.

    Args:
        tokens: how many of the new tokens it keeps.
        offload: whether to put them into CPU memory, from where a layer returns when it is asked for.
    """

    def __init__(self, tokens: int, offload: bool = False) -> None:
        self.tokens = tokens
        self.offload = offload
        self.layers: dict[int, KV] = {}
        self._device: Any = None

    def __call__(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep a layer."""
        self._device = k.device
        self.layers[layer] = (self._copy(k), self._copy(v))

    def layer(self, layer: int) -> KV:
        k, v = self.layers[layer]
        return k.to(self._device), v.to(self._device)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, wherever they are."""
        return sum(t.nbytes for kv in self.layers.values() for t in kv)

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2)
        return (
            rows.to("cpu", copy=True) if self.offload else rows.clone(memory_format=torch.contiguous_format)
        ).transpose(1, 2)


class Prefiller:
    """Prefills requests one by one.

    Args:
        model: a causal language model of transformers whose attention is ``prefillsim`` (see ``build_model``).
        switches: how its virtual layers run.

    Raises:
        HybridError: if its graph is not made of attention and provably token-wise operators.
    """

    def __init__(self, model: Any, switches: Switches | None = None) -> None:
        self.switches = Switches() if switches is None else switches
        decoder = model.get_decoder()
        self.plan = plan(capture(decoder))
        weights = {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}
        self._load(weights, model.get_output_embeddings())

    def with_switches(self, switches: Switches) -> Prefiller:
        """Return the same with other switches; the graph and the weights are shared."""
        other = object.__new__(Prefiller)
        other.switches, other.plan = switches, self.plan
        other._load(self.weights, self.head)
        return other

    def without_memory(self) -> Prefiller:
        """Return the same on the meta device: it computes nothing, and takes no memory, but says how much it would."""
        other = object.__new__(Prefiller)
        other.switches, other.plan = replace(self.switches, compiled=False), self.plan
        head = torch.nn.Linear(1, 1, bias=False, device="meta")
        head.weight = torch.nn.Parameter(self.head.weight.detach().to("meta"), requires_grad=False)
        other._load({name: t.detach().to("meta") for name, t in self.weights.items()}, head)
        return other

    def _load(self, weights: dict[str, torch.Tensor], head: Any) -> None:
        self.weights, self.head = weights, head
        self._executor = Executor(self.plan, weights, self.switches)

    @property
    def device(self) -> Any:
        """Where the weights are."""
        return self.head.weight.device

    def prefill(
        self, ids: torch.Tensor, *, prefix: Prefix | None = None, keep: int = 0, sink: Sink | None = None
    ) -> torch.Tensor:
        """Return the logits of the token that comes next, [vocabulary].

        Args:
            ids: of the new tokens, [n]; they are the positions after the prefix.
            prefix: the KV of the tokens before them.
            keep: how many of the new tokens, from the first, go to ``sink``; the others' KV is dropped layer by layer.
            sink: what takes the KV that is kept.

        Raises:
            HybridError: if there is no new token, more are to be kept than there are, or there is no sink for them.
        """
        new = ids.shape[0] if ids.dim() == 1 else 0
        if not new:
            raise HybridError(f"token ids have the shape {tuple(ids.shape)}; it must be (n,) with at least one token")
        if not 0 <= keep <= new or (keep and sink is None):
            raise HybridError(f"keep is {keep} of {new} new tokens; it must lie between 0 and {new}, and needs a sink")

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
            out = causal_attention(q, k, v, scale, None if prefix is None else prefix.layer(layer))
            if keep and sink is not None:
                sink(layer, k[:, :, :keep], v[:, :, :keep])
            return out

        return self.logits(self.hidden(ids, 0 if prefix is None else prefix.tokens, attend))

    def hidden(self, ids: torch.Tensor, start: int, attend: Attend) -> torch.Tensor:
        """Return the last layer's hidden states of ``ids`` [n] at positions from ``start``, [1, n, hidden]."""
        positions = torch.arange(start, start + ids.shape[0], device=ids.device)
        return self._executor.run(ids[None], positions[None], attend)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits after the last of ``hidden``'s tokens, [vocabulary]."""
        with torch.no_grad():
            return torch.nn.functional.linear(hidden[0, -1:], self.head.weight, self.head.bias)[0]
