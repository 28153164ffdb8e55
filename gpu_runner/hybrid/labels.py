"""What is known about a value of the graph: in which dimension its tokens lie, if it has any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Shape = tuple[int | None, ...]
"""Sizes; None in the place of the number of tokens."""


class NotTokenWise(Exception):
    """Why an operator cannot be proved to treat each token by itself."""


@dataclass(frozen=True)
class Rows:
    """One row per token along ``dim``: row i depends on token i alone (and on weights).

    Where an operator returns several tensors, the label holds for each.
    """

    dim: int


@dataclass(frozen=True)
class Const:
    """The same whatever the tokens are and however many."""


@dataclass(frozen=True)
class Length:
    """The number of tokens itself."""


@dataclass(frozen=True)
class Derived:
    """A number that was computed from the number of tokens."""


Label = Rows | Const | Length | Derived


@dataclass(frozen=True)
class Value:
    """An operand: its label and the sizes of its dimensions."""

    label: Label
    shape: Shape = ()

    @property
    def dim(self) -> int | None:
        """Where its tokens lie."""
        return self.label.dim if isinstance(self.label, Rows) else None


def axis(dim: int, ndim: int) -> int:
    """Return ``dim`` counted from the front."""
    return dim + ndim if dim < 0 else dim


def token_dim(value: Any) -> int:
    """Return where the tokens of an operand lie.

    Raises:
        NotTokenWise: if it has none.
    """
    dim = value.dim if isinstance(value, Value) else None
    if dim is None:
        raise NotTokenWise("an operand that should hold the tokens does not")
    return dim


def const(value: Any) -> None:
    """Accept an operand that is the same for every token, and nothing else.

    Raises:
        NotTokenWise: if it is not.
    """
    if isinstance(value, Value) and not isinstance(value.label, Const):
        raise NotTokenWise("an operand that should be the same for every token is not")
