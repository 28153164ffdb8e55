"""The graph of a decoder's forward pass, in ATen operators, with the number of tokens as its only free size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gpu_runner.hybrid.errors import HybridError

TRACED = 61
"""Tokens that are traced with; no operator may take notice of how many they are."""


@dataclass(frozen=True)
class Capture:
    """A traced decoder.

    Attributes:
        graph: placeholders are the parameters and buffers in the order of ``names``, then the token ids [1, n] and
            the positions [1, n]; its one output is the hidden states of the last layer [1, n, hidden].
        names: of the parameters and buffers.
        tokens: the symbol that stands for n.
    """

    graph: Any
    names: tuple[str, ...]
    tokens: Any

    @property
    def inputs(self) -> tuple[Any, Any]:
        """The placeholders of token ids and positions."""
        nodes = [n for n in self.graph.nodes if n.op == "placeholder"]
        return nodes[-2], nodes[-1]


def capture(decoder: Any) -> Capture:
    """Trace ``decoder``, a transformers decoder without head, without running it.

    Raises:
        HybridError: if its graph depends on how many tokens there are.
    """
    tensors = {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}
    names = tuple(tensors)
    with unset_fake_temporarily(), torch.no_grad():
        graph, tokens, shape_env = _trace(decoder, names, tensors.values())
    if tokens in shape_env.replacements or any(g.expr.has(tokens) and _fixes(g.expr) for g in shape_env.guards):
        raise HybridError(
            f"the graph of {type(decoder).__name__} is made for one number of tokens; hybrid prefilling needs "
            "a forward pass that works for any"
        )
    return Capture(graph, names, tokens)


def _trace(decoder: Any, names: tuple[str, ...], tensors: Iterable[Any]) -> tuple[Any, Any, Any]:
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    ids = mode.from_tensor(
        torch.zeros((1, TRACED), dtype=torch.long, device="meta"),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC, DimDynamic.DYNAMIC]),
    )
    with mode:
        weights = [torch.empty(tuple(t.shape), dtype=t.dtype, device="meta") for t in tensors]
        positions = torch.empty((1, ids.shape[1]), dtype=torch.long, device="meta")

    def forward(values: list[Any], ids: Any, positions: Any) -> Any:
        kwargs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        return torch.func.functional_call(decoder, dict(zip(names, values, strict=True)), (), kwargs)[0]

    module = make_fx(forward, tracing_mode="symbolic")(weights, ids, positions)
    return module.graph, ids.shape[1].node.expr, shape_env


def _fixes(expr: Any) -> bool:
    return bool(expr.is_Relational and expr.rel_op == "==")
