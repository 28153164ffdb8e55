"""What a plan is made of: stages, and the tensors that go from one to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Port:
    """A tensor that goes from one stage to another.

    Attributes:
        name: of the graph's node.
        dim: where its tokens lie.
        row: its sizes without the tokens' dimension.
        dtype: of its elements.
    """

    name: str
    dim: int
    row: tuple[int, ...]
    dtype: Any

    def sizes(self, tokens: int) -> tuple[int, ...]:
        """Return the sizes that it has with so many tokens."""
        return (*self.row[: self.dim], tokens, *self.row[self.dim :])


@dataclass
class Stage:
    """A virtual layer, or one attention call with the views before it.

    Attributes:
        inputs: the tensors with tokens that it reads.
        weights: names of the placeholders that it reads besides.
        outputs: what it makes; of an attention, its query, key and value are the module's results.
        module: from inputs, then weights, to a tuple.
        attention: scale and layer, None for a virtual layer.
        dying: inputs that no later stage reads.
        donors: which dying input's memory each output may take, by name.
    """

    inputs: list[Port]
    weights: list[str]
    outputs: list[Port]
    module: Any
    attention: tuple[float, int] | None = None
    dying: list[str] = field(default_factory=list)
    donors: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for stages that compute the same from other inputs and weights."""
        at = {node: f"%{i}" for i, node in enumerate(self.module.graph.nodes)}
        lines = [
            (str(n.target), str(torch.fx.map_arg((n.args, n.kwargs), at.get))) for n in at if n.op == "call_function"
        ]
        ports = [(p.dim, p.row, str(p.dtype)) for p in (*self.inputs, *self.outputs)]
        return repr((ports, len(self.weights), lines))


@dataclass(frozen=True)
class Plan:
    """All stages in order.

    Attributes:
        stages: of a prefill.
        result: the name of the last layer's hidden states.
        result_dim: where their tokens lie.
        ids: the placeholder of the token ids.
        positions: the placeholder of the positions.
        placeholders: parameters and buffers, placeholder to name.
        constants: tensors that the graph itself holds.
    """

    stages: list[Stage]
    result: str
    result_dim: int
    ids: str
    positions: str
    placeholders: dict[str, str]
    constants: dict[str, torch.Tensor]
