"""Running a plan: virtual layers chunk by chunk or whole, attention whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.parts import Plan, Port, Stage

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Called with layer, query, key, value and scale; returns [1, n, heads, d]."""


@dataclass(frozen=True)
class Switches:
    """How virtual layers run (PrefillOnly §4.3, Figure 10).

    Attributes:
        chunk: tokens at once; None runs them whole.
        preallocate: write each chunk's result into a tensor made before; else list the chunks and string them together,
            as a function would, whose caller holds the inputs until it returns.
        in_place: let an output take the memory of an input that is not read any more, where they are equally large.
        compiled: let Inductor compile each virtual layer, equal ones once.

    Raises:
        HybridError: if chunk is below 1, or chunks are to be in place without being preallocated.
    """

    chunk: int | None = 512
    preallocate: bool = True
    in_place: bool = True
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise HybridError(f"chunk is {self.chunk}; it must be at least 1, or None for no chunks")
        if self.in_place and not self.preallocate:
            raise HybridError("in_place needs preallocate: without it there is no memory to write the chunks to")


PLAIN = Switches(chunk=None)
"""Everything whole."""


class Executor:
    """Runs a plan with the weights that it is given.

    Args:
        plan: the stages.
        weights: parameters and buffers by name.
        switches: how to run them.
    """

    def __init__(self, plan: Plan, weights: dict[str, torch.Tensor], switches: Switches) -> None:
        self.plan = plan
        self.switches = switches
        self.weights = {node: weights[name] for node, name in plan.placeholders.items()} | plan.constants
        functions: dict[str, Callable[[list[Any]], tuple[Any, ...]]] = {}
        self._functions = [self._function(stage, functions) for stage in plan.stages]

    def run(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return the last layer's hidden states.

        Args:
            ids: of the tokens, [1, n].
            positions: of the tokens, [1, n].
            attend: called for each attention, in order.
        """
        live: dict[str, torch.Tensor] = {self.plan.ids: ids, self.plan.positions: positions}
        with torch.no_grad():
            for stage, function in zip(self.plan.stages, self._functions, strict=True):
                if stage.attention is not None:
                    self._attend(stage, function, live, attend)
                elif self.switches.chunk is None or self.switches.chunk >= ids.shape[1]:
                    values = self._arguments(stage, live)
                    for name in stage.dying:
                        del live[name]
                    self._put(live, stage, self._whole(stage, function, values))
                else:
                    self._chunks(stage, function, live, ids.shape[1], self.switches.chunk)
        return live.pop(self.plan.result)

    def _function(
        self, stage: Stage, known: dict[str, Callable[[list[Any]], tuple[Any, ...]]]
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        if self.switches.compiled and stage.attention is None:
            if stage.key not in known:
                known[stage.key] = _compiled(stage.module)
            return known[stage.key]
        return lambda values: stage.module(*values)

    def _whole(
        self, stage: Stage, function: Callable[[list[Any]], tuple[Any, ...]], values: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        return function(values) if self.switches.compiled else _boxed(stage.module)(values)

    def _arguments(self, stage: Stage, live: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [live[p.name] for p in stage.inputs] + [self.weights[name] for name in stage.weights]

    @staticmethod
    def _put(live: dict[str, torch.Tensor], stage: Stage, made: tuple[torch.Tensor, ...]) -> None:
        live.update(zip((p.name for p in stage.outputs), made, strict=True))

    def _attend(
        self, stage: Stage, views: Callable[[list[Any]], tuple[Any, ...]], live: dict[str, torch.Tensor], attend: Attend
    ) -> None:
        assert stage.attention is not None
        scale, layer = stage.attention
        q, k, v = views(self._arguments(stage, live))
        for name in stage.dying:
            del live[name]
        live[stage.outputs[0].name] = attend(layer, q, k, v, scale)

    def _chunks(
        self,
        stage: Stage,
        function: Callable[[list[Any]], tuple[Any, ...]],
        live: dict[str, torch.Tensor],
        tokens: int,
        chunk: int,
    ) -> None:
        weights = [self.weights[name] for name in stage.weights]
        inputs = {p.name: live[p.name] for p in stage.inputs}
        for name in stage.dying:
            del live[name]
        preallocate = self.switches.preallocate
        into = [self._buffer(stage, p, inputs, tokens) for p in stage.outputs] if preallocate else []
        lists: list[list[torch.Tensor]] = [[] for _ in stage.outputs]
        for lo in range(0, tokens, chunk):
            size = min(chunk, tokens - lo)
            made = function([inputs[p.name].narrow(p.dim, lo, size) for p in stage.inputs] + weights)
            for i, port in enumerate(stage.outputs):
                if preallocate:
                    into[i].narrow(port.dim, lo, size).copy_(made[i])
                else:
                    lists[i].append(made[i])
            del made
        if not preallocate:
            for port, parts in zip(stage.outputs, lists, strict=True):
                into.append(torch.cat(parts, port.dim))
                parts.clear()
        self._put(live, stage, tuple(into))

    def _buffer(self, stage: Stage, port: Port, inputs: dict[str, torch.Tensor], tokens: int) -> torch.Tensor:
        donor = stage.donors.get(port.name) if self.switches.in_place else None
        if donor is not None:
            dim = next(p.dim for p in stage.inputs if p.name == donor)
            rows = inputs[donor].movedim(dim, 0)
            if rows.is_contiguous():
                return rows.view(tokens, *port.row).movedim(0, port.dim)
        like = next(iter(inputs.values()))
        return torch.empty((tokens, *port.row), dtype=port.dtype, device=like.device).movedim(0, port.dim)


_BOXED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _boxed(module: Any) -> Any:
    """Return a module that takes its arguments out of a list, so that each dies with its last use inside."""
    if module not in _BOXED:
        graph = torch.fx.Graph()
        values = graph.placeholder("values")
        new: dict[Any, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                new[node] = graph.call_method("pop", (values, 0))
            else:
                new[node] = graph.node_copy(node, new.__getitem__)
        _BOXED[module] = torch.fx.GraphModule(torch.nn.Module(), graph)
    return _BOXED[module]


def _compiled(module: Any) -> Callable[[list[Any]], tuple[Any, ...]]:
    function = torch.compile(module)
    return lambda values: function(*values)
