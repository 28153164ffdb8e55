"""A closed form and the trees of a gradient-boosted residual, without scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError
from costmodels.nnls import NnlsCost, prefill_context

INPUTS = (
    "n_decode",
    "decode_context",
    "decode_context_max",
    "n_prefill",
    "prefill_tokens",
    "prefill_pairs",
    "tokens",
    "prefill_context",
)
"""What trees ask about: a step's features, its decoded and prefilled tokens, and what a prefill had computed before."""

MAX_NS = 10**12
MOST_DEPTH = 40
"""Python's parser takes no deeper expressions."""


class Tree(NamedTuple):
    """A binary tree in flat arrays: node ``i`` goes left where its input is at most the threshold.

    Leaves have ``-1`` for an input, and their value in ns; children come after their parents.
    """

    inputs: tuple[int, ...]
    thresholds: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class BoostedCost(CostModel):
    """``base`` plus the sum of trees, at least 1 ns. Whole nanoseconds, the same on every machine.

    Raises:
        CostModelError: if a tree is none.
    """

    name: str = "boosted"
    base: NnlsCost = field(default_factory=lambda: NnlsCost(step_fs=1))
    trees: tuple[Tree, ...] = ()
    source: str = ""
    """Where the measurements are from."""
    _sum: Callable[[int, int, int, int, int, int, int, int], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number, tree in enumerate(self.trees):
            problem = _problem(tree)
            if problem is not None:
                raise CostModelError(f"cost model {self.name}: tree {number}: {problem}")
        object.__setattr__(self, "_sum", _compiled(self.trees))

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        t = self.base.step_ns(
            n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs
        ) + self._sum(
            n_decode,
            decode_context,
            decode_context_max,
            n_prefill,
            prefill_tokens,
            prefill_pairs,
            n_decode + prefill_tokens,
            prefill_context(prefill_tokens, prefill_pairs),
        )
        return t if t > 0 else 1

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        more = np.arange(steps, dtype=np.int64)
        features = np.zeros((steps, len(INPUTS)), dtype=np.int64)
        features[:, 0] = features[:, 6] = n_decode
        features[:, 1] = decode_context + n_decode * more
        features[:, 2] = decode_context_max + more
        base = self.base.decode_run_ns(n_decode, decode_context, decode_context_max, steps)
        return np.asarray(np.maximum(base + trees_ns(self.trees, features), 1), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "boosted",
            "name": self.name,
            "base": self.base.to_dict(),
            "trees": [{what: list(values) for what, values in tree._asdict().items()} for tree in self.trees],
            "source": self.source,
        }


def trees_ns(trees: tuple[Tree, ...], features: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of the trees in ns, shape (rows,), of rows of :data:`INPUTS`."""
    total = np.zeros(len(features), dtype=np.int64)
    rows = np.arange(len(features))
    for tree in trees:
        inputs, thresholds, left, right, values = map(np.array, tree)
        at = np.zeros(len(features), dtype=np.int64)
        while (inside := inputs[at] >= 0).any():
            goes_left = features[rows, np.maximum(inputs[at], 0)] <= thresholds[at]
            at = np.where(inside, np.where(goes_left, left[at], right[at]), at)
        total += values[at]
    return total


def _problem(tree: Tree) -> str | None:
    size = len(tree.inputs)
    if not size or any(len(values) != size for values in tree):
        return "its arrays must be of one length, at least 1"
    if any(type(v) is not int for values in tree for v in values):
        return "it must hold whole numbers"
    if any(not -1 <= v < len(INPUTS) for v in tree.inputs):
        return f"an input must be -1 to {len(INPUTS) - 1} ({', '.join(INPUTS)})"
    depth = [0] * size
    for i in range(size):
        if abs(tree.values[i]) > MAX_NS or abs(tree.thresholds[i]) > 1 << 60:
            return f"node {i} has a value beyond 1,000 s or a threshold beyond 2**60"
        if tree.inputs[i] < 0:
            continue
        for child in (tree.left[i], tree.right[i]):
            if not i < child < size:
                return f"node {i} has the child {child}; children come after their parents"
            depth[child] = depth[i] + 1
    return f"it is deeper than {MOST_DEPTH}" if max(depth) > MOST_DEPTH else None


def _compiled(trees: tuple[Tree, ...]) -> Callable[[int, int, int, int, int, int, int, int], int]:
    """Return the sum of the trees as one function of nested conditions, several times as fast as reading arrays.

    Its text is made of nothing but the trees' whole numbers, which have been checked.
    """
    names = "abcdefgh"

    def text(tree: Tree, node: int) -> str:
        if tree.inputs[node] < 0:
            return str(tree.values[node])
        left, right = text(tree, tree.left[node]), text(tree, tree.right[node])
        return f"({left} if {names[tree.inputs[node]]} <= {tree.thresholds[node]} else {right})"

    lines = [f" t += {text(tree, 0)}" for tree in trees]
    source = "\n".join([f"def total({', '.join(names)}):", " t = 0", *lines, " return t"])
    space: dict[str, Any] = {"__builtins__": {}}
    exec(compile(source, "<trees>", "exec"), space)
    total: Callable[[int, int, int, int, int, int, int, int], int] = space["total"]
    return total
