"""The graph pass: every maximal run of token-wise operators between attention calls becomes one virtual layer."""

from __future__ import annotations

import operator
from typing import Any

import torch

from gpu_runner.hybrid.attention import ATTENTION
from gpu_runner.hybrid.capture import Capture
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.labels import Const, Derived, Label, Length, NotTokenWise, Rows, Shape, Value, token_dim
from gpu_runner.hybrid.parts import Plan, Port, Stage
from gpu_runner.hybrid.rules import VIEWS, label_of

aten = torch.ops.aten


def plan(captured: Capture) -> Plan:
    """Fold a graph into stages.

    Raises:
        HybridError: if one of its operators is neither attention nor provably token-wise.
    """
    return _Planner(captured).plan()


class _Planner:
    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.nodes = list(captured.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self.labels: dict[Any, Label] = {}
        self.depth: dict[Any, int] = {}
        self.problems: dict[Any, str] = {}
        self._label()

    def plan(self) -> Plan:
        result = self.nodes[-1].args[0]
        if isinstance(result, list | tuple):
            result = result[0]
        if not isinstance(self.labels.get(result), Rows):
            raise HybridError(
                "what the graph returns has no rows of tokens; give hybrid prefilling a decoder's hidden states"
            )
        wanted: dict[tuple[int, Any], set[Any]] = {(self.depth[result], None): {result}}
        stages: list[Stage] = []
        while wanted:
            at = max(wanted, key=lambda k: (k[0], k[1] is None, self.order.get(k[1], 0)))
            stage, needed = self._stage(at, wanted.pop(at))
            stages.append(stage)
            for node in needed:
                if node.op != "placeholder":
                    place = (self.depth[node], node if node.target is ATTENTION else None)
                    wanted.setdefault(place, set()).add(node)
        stages.reverse()
        _set_lifetimes(stages, result.name)
        ids, positions = self.captured.inputs
        placeholders = [n for n in self.nodes if n.op == "placeholder"][:-2]
        return Plan(
            stages,
            result.name,
            token_dim(self._value(result)),
            ids.name,
            positions.name,
            {n.name: name for n, name in zip(placeholders, self.captured.names, strict=True)},
            {n.name: getattr(self.captured.graph.owning_module, n.target) for n in self.nodes if n.op == "get_attr"},
        )

    def _label(self) -> None:
        inputs = self.captured.inputs
        for node in self.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.labels[node] = Rows(1) if node in inputs else Const()
                self.depth[node] = 0
            elif node.op == "call_function":
                self.depth[node] = max((self.depth[n] for n in node.all_input_nodes), default=0)
                try:
                    self.labels[node] = self._label_call(node)
                except NotTokenWise as why:
                    raise HybridError(
                        f"cannot prove that {node.target} ({node.name}) treats each token by itself: {why}; hybrid "
                        "prefilling runs attention whole and everything else by chunks"
                    ) from why

    def _label_call(self, node: Any) -> Label:
        labels = [self.labels[n] for n in node.all_input_nodes]
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymInt) or type(meta) is int:
            return self._number(meta)
        if any(isinstance(label, Derived) for label in labels):
            raise NotTokenWise("it computes with something that was computed from the number of tokens")
        if node.target is operator.getitem:
            return labels[0]
        if not any(isinstance(label, Rows | Length) for label in labels):
            self._shape(meta, tokens=False)
            return Const()
        if node.target is ATTENTION:
            if any(token_dim(self._value(n)) != 2 for n in node.args[:3]):
                raise NotTokenWise("its query, key and value must have their tokens in dimension 2")
            self.depth[node] += 1
            return Rows(1)
        if not any(isinstance(label, Rows) for label in labels):
            raise NotTokenWise("it makes rows of its own, which belong to no token")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._value)
        label = label_of(node.target, args, kwargs, self._shape(meta))
        if not isinstance(label, Rows) or (self._shape(meta) and self._shape(meta)[label.dim] is not None):
            raise NotTokenWise("the tokens are not where they should be in its result")
        return label

    def _number(self, number: Any) -> Label:
        try:
            return Length() if self._size(number) is None else Const()
        except NotTokenWise:
            return Derived()

    def _value(self, node: Any) -> Value:
        return Value(self.labels[node], self._shape(node.meta["val"]))

    def _size(self, size: Any) -> int | None:
        if isinstance(size, torch.SymInt):
            expr = size.node.expr
            if expr == self.captured.tokens:
                return None
            if not expr.is_number:
                raise NotTokenWise(f"a size of {expr}, with {self.captured.tokens} tokens, is not a row for each")
        return int(size)

    def _shape(self, meta: Any, tokens: bool = True) -> Shape:
        if not isinstance(meta, torch.Tensor):
            return ()
        shape = tuple(self._size(s) for s in meta.shape)
        if shape.count(None) > tokens:
            raise NotTokenWise(
                "its result has more than one row for each token"
                if tokens
                else "it makes rows of its own, which belong to no token"
            )
        return shape

    def _port(self, node: Any) -> Port:
        shape = self._shape(node.meta["val"])
        row = tuple(s for s in shape if s is not None)
        return Port(node.name, shape.index(None), row, node.meta["val"].dtype)

    def _is_view(self, node: Any) -> bool:
        if node.target is operator.getitem:
            return self._is_view(node.args[0])
        return node.target in VIEWS

    def _stage(self, at: tuple[int, Any], outputs: set[Any]) -> tuple[Stage, list[Any]]:
        depth, attention = at
        roots = list(attention.args[:3]) if attention is not None else sorted(outputs, key=self.order.__getitem__)
        inside: set[Any] = set()
        external: set[Any] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in inside or node in external:
                continue
            if isinstance(self.labels[node], Rows) and not self._belongs(node, depth, attention):
                external.add(node)
                continue
            inside.add(node)
            if not isinstance(self.labels[node], Length):
                stack.extend(node.all_input_nodes)
        body = [n for n in self.nodes if n in inside and n.op == "call_function"]
        met = list(dict.fromkeys([n for user in body for n in user.all_input_nodes] + roots))
        inputs = [n for n in met if n in external]
        weights = [n for n in met if n in inside and n.op in ("placeholder", "get_attr")]
        module = self._module(inputs, weights, body, roots)
        made = [attention] if attention is not None else roots
        call = (float(attention.args[3]), int(attention.args[4])) if attention is not None else None
        ports = [self._port(n) for n in inputs], [self._port(n) for n in made]
        return Stage(ports[0], [n.name for n in weights], ports[1], module, call), inputs

    def _belongs(self, node: Any, depth: int, attention: Any) -> bool:
        if node.op == "placeholder" or node.target is ATTENTION:
            return False
        return self._is_view(node) or (attention is None and self.depth[node] == depth)

    def _module(self, inputs: list[Any], weights: list[Any], body: list[Any], roots: list[Any]) -> Any:
        graph = torch.fx.Graph()
        new = {node: graph.placeholder(node.name) for node in (*inputs, *weights)}
        lengths = [n for n in body if isinstance(self.labels[n], Length)]
        if lengths:
            first = inputs[0]
            size = graph.call_function(aten.sym_size.int, (new[first], token_dim(self._value(first))))
            new.update(dict.fromkeys(lengths, size))
        for node in body:
            if node not in new:
                copy = graph.node_copy(node, new.__getitem__)
                if copy.target in (aten.view.default, aten._unsafe_view.default):
                    copy.target = aten.reshape.default
                copy.kwargs = {k: v for k, v in copy.kwargs.items() if k != "device"}
                new[node] = copy
        graph.output(tuple(new[n] for n in roots))
        return torch.fx.GraphModule(torch.nn.Module(), graph)


def _set_lifetimes(stages: list[Stage], result: str) -> None:
    read = {result}
    for stage in reversed(stages):
        stage.dying = [p.name for p in stage.inputs if p.name not in read]
        read.update(p.name for p in stage.inputs)
    made = {p.name for stage in stages for p in stage.outputs}
    for stage in stages:
        if stage.attention is None:
            stage.donors = _donors(stage, made)


def _donors(stage: Stage, made: set[str]) -> dict[str, str]:
    free = [p for p in stage.inputs if p.name in stage.dying and p.name in made]
    donors = {}
    for same in (_equal, _as_large):
        for port in stage.outputs:
            donor = next((p for p in free if port.name not in donors and same(p, port)), None)
            if donor is not None:
                donors[port.name] = donor.name
                free.remove(donor)
    return donors


def _equal(a: Port, b: Port) -> bool:
    return (a.dim, a.row, a.dtype) == (b.dim, b.row, b.dtype)


def _as_large(a: Port, b: Port) -> bool:
    return torch.Size(a.row).numel() == torch.Size(b.row).numel() and a.dtype == b.dtype
