"""Deadline filling over several prefills."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from costmodels.base import CostModel
from costmodels.margin import with_margin
from policies.chunking.deadline_fill import DeadlineFill
from policies.registry import register
from policies.views import BatchView, Grant


@register
class DeadlineSlots(DeadlineFill):
    """The most tokens of up to ``slots`` prefills, each filled before the next, that end before the deadline.

    Only where all that is left of one prefill fits does the next one get tokens; with one slot it is deadline-fill.
    What those hit that start in the same step is taken as it was before the step.
    """

    name = "deadline-slots"
    source = "SLOWeave §3.2 with several prefills per step; this project's"

    slots: Annotated[int, Ge(1)] = 4
    """Most prefills per step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lookahead = self.slots  # type: ignore[misc]

    def reset(self, predictor: CostModel | None) -> None:
        super().reset(predictor)
        assert predictor is not None
        self._step_ns = with_margin(predictor, self.margin).step_ns

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return max_num_seqs + min(self.cap, self.slots * max_model_len)

    def grant(self, batch: BatchView) -> Grant:
        alone = super().grant(batch)
        places = [(c.context, c.remaining) for c in batch.candidates[: self.slots]]
        if alone.exception or alone.tokens < places[0][1]:
            return alone
        most = min(self.cap, sum(remaining for _, remaining in places))
        deadline = batch.earliest_deadline_ns
        if deadline is None or not batch.n_decode:
            return Grant(most, self.slots)
        decodes = batch.n_decode, batch.decode_context, batch.decode_context_max
        least, slack = alone.tokens, deadline - batch.now_ns
        while least < most:
            tokens = (least + most + 1) // 2
            if self._step_ns(*decodes, *_filled(places, tokens)) <= slack:
                least = tokens
            else:
                most = tokens - 1
        return Grant(least, self.slots)


def _filled(places: list[tuple[int, int]], tokens: int) -> tuple[int, int, int]:
    """Return the prefills, their tokens and their query-key pairs when ``tokens`` are handed out in order."""
    left, prefills, pairs = tokens, 0, 0
    for context, remaining in places:
        if not left:
            break
        c = min(left, remaining)
        pairs += c * context + c * (c + 1) // 2
        left -= c
        prefills += 1
    return prefills, tokens, pairs
