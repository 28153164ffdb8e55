"""Which ATen operators treat each token by itself, and where the tokens lie in what they return.

A rule gets the operator's arguments, tensors as :class:`~gpu_runner.hybrid.labels.Value`, and the shape of its result
(the tokens' dimension is None), and returns the result's label or raises ``NotTokenWise``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpu_runner.hybrid.fp8 import FP8_LINEAR
from gpu_runner.hybrid.labels import Label, Length, NotTokenWise, Rows, Shape, Value, axis, const, token_dim

Rule = Callable[[tuple[Any, ...], dict[str, Any], Shape], Label]

RULES: dict[Any, Rule] = {}
"""Rules by operator; whoever has an operator of their own adds one."""

VIEWS: set[Any] = set()
"""Operators whose result shares its operand's memory."""


def label_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    """Return where the tokens lie in what ``op`` returns.

    Raises:
        NotTokenWise: if ``op`` is not known to treat each token by itself.
    """
    rule = RULES.get(op)
    if rule is not None:
        return rule(args, kwargs, shape)
    tags = getattr(op, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        raise NotTokenWise("it draws random numbers")
    if torch.Tag.pointwise in tags and not op._schema.is_mutable:
        return _pointwise(args, kwargs, shape)
    raise NotTokenWise("nothing is known about this operator")


def _for(names: str, view: bool = False) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for name in names.split():
            packet, overload = name.split(".")
            op = getattr(getattr(torch.ops.aten, packet), overload)
            RULES[op] = rule
            if view:
                VIEWS.add(op)
        return rule

    return add


def _values(args: Any) -> Iterator[Value]:
    for a in args:
        if isinstance(a, Value):
            yield a
        elif isinstance(a, list | tuple):
            yield from _values(a)


@_for("clone.default _to_copy.default")
def _pointwise(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    found = set()
    for value in _values((*args, *kwargs.values())):
        if isinstance(value.label, Length):
            raise NotTokenWise("it computes with the number of tokens")
        if value.dim is not None:
            found.add(value.dim - len(value.shape))
    if len(found) != 1:
        raise NotTokenWise("its operands' tokens lie in different dimensions")
    from_end = found.pop()
    for value in _values((*args, *kwargs.values())):
        if value.dim is None and len(value.shape) >= -from_end and value.shape[from_end] != 1:
            raise NotTokenWise("an operand without tokens has as many rows as there are tokens")
    return Rows(len(shape) + from_end)


@_for("alias.default detach.default", view=True)
def _same(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    return Rows(token_dim(args[0]))


@_for("view.default _unsafe_view.default reshape.default", view=True)
def _view(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    to = shape.index(None)
    if _rows_before(shape, to) != _rows_before(args[0].shape, token_dim(args[0])):
        raise NotTokenWise("it mixes the tokens' dimension with others")
    return Rows(to)


@_for("t.default", view=True)
def _t(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    return Rows(len(shape) - 1 - token_dim(args[0]))


@_for("transpose.int", view=True)
def _transpose(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    a, b = (axis(d, len(shape)) for d in args[1:3])
    dim = token_dim(args[0])
    return Rows({a: b, b: a}.get(dim, dim))


@_for("permute.default", view=True)
def _permute(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    return Rows([axis(d, len(shape)) for d in args[1]].index(token_dim(args[0])))


@_for("unsqueeze.default", view=True)
def _unsqueeze(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dim = token_dim(args[0])
    return Rows(dim + (axis(args[1], len(shape)) <= dim))


@_for("squeeze.dim squeeze.dims", view=True)
def _squeeze(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    given = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    source = args[0].shape
    gone = {axis(d, len(source)) for d in given if source[axis(d, len(source))] == 1}
    dim = token_dim(args[0])
    if dim in {axis(d, len(source)) for d in given}:
        raise NotTokenWise("it would drop the tokens' dimension where there is one token")
    return Rows(dim - sum(d < dim for d in gone))


@_for("expand.default", view=True)
def _expand(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    return Rows(token_dim(args[0]) + len(shape) - len(args[0].shape))


@_for("slice.Tensor", view=True)
def _slice(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dim = token_dim(args[0])
    if axis(args[1] if len(args) > 1 else 0, len(shape)) == dim:
        raise NotTokenWise("it takes some of the tokens")
    return Rows(dim)


@_for("select.int", view=True)
def _select(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dim, taken = token_dim(args[0]), axis(args[1], len(args[0].shape))
    if taken == dim:
        raise NotTokenWise("it takes one of the tokens")
    return Rows(dim - (taken < dim))


@_for("split.Tensor split_with_sizes.default", view=True)
def _split(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dim = token_dim(args[0])
    if axis(args[2] if len(args) > 2 else kwargs.get("dim", 0), len(args[0].shape)) == dim:
        raise NotTokenWise("it splits the tokens")
    return Rows(dim)


@_for("cat.default")
def _cat(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dims = {token_dim(value) for value in args[0]}
    if len(dims) != 1:
        raise NotTokenWise("its operands' tokens lie in different dimensions")
    dim = dims.pop()
    if axis(args[1] if len(args) > 1 else kwargs.get("dim", 0), len(shape)) == dim:
        raise NotTokenWise("it strings tokens together")
    return Rows(dim)


@_for("mm.default")
def _mm(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    left, right = args[:2]
    if left.dim is None:
        const(left)
        left, right, free = right, left, 1
    else:
        free = 0
    const(right)
    if token_dim(left) != free:
        raise NotTokenWise("it sums over the tokens")
    return Rows(free)


@_for("addmm.default")
def _addmm(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    label = _mm(args[1:], kwargs, shape)
    product = Value(label, shape)
    return _pointwise((args[0], product), {}, shape)


@_for("bmm.default")
def _bmm(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    left, right = args[:2]
    if left.dim is None:
        const(left)
        left, right, free = right, left, 2
    else:
        free = 1
    const(right)
    if token_dim(left) != free:
        raise NotTokenWise("it sums over the tokens, or each has a matrix of its own")
    return Rows(free)


@_for("embedding.default")
def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    const(args[0])
    return Rows(token_dim(args[1]))


@_for("mean.dim sum.dim_IntList amax.default amin.default")
def _reduce(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    dim, ndim = token_dim(args[0]), len(args[0].shape)
    given = args[1] if len(args) > 1 else None
    gone = {axis(d, ndim) for d in given} if given else set(range(ndim))
    if dim in gone:
        raise NotTokenWise("it reduces over the tokens")
    return Rows(dim if len(shape) == ndim else dim - sum(d < dim for d in gone))


@_for("_softmax.default _log_softmax.default")
def _softmax(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    if axis(args[1], len(shape)) == token_dim(args[0]):
        raise NotTokenWise("it normalises over the tokens")
    return Rows(token_dim(args[0]))


@_for("native_layer_norm.default _fused_rms_norm.default")
def _norm(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    for weight in args[2:]:
        const(weight)
    dim = token_dim(args[0])
    if dim >= len(args[0].shape) - len(args[1]):
        raise NotTokenWise("it normalises over the tokens")
    return Rows(dim)


def _fp8(args: tuple[Any, ...], kwargs: dict[str, Any], shape: Shape) -> Label:
    for weight in args[1:]:
        const(weight)
    if token_dim(args[0]) == len(args[0].shape) - 1:
        raise NotTokenWise("it sums over the tokens")
    return Rows(token_dim(args[0]))


RULES[FP8_LINEAR] = _fp8


def _rows_before(shape: Shape, dim: int) -> int:
    return math.prod(size for size in shape[:dim] if size is not None)
