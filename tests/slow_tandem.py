"""A pipeline written naively: a list of every batch and of when it left each stage."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels import CostModel


class SlowTandem:
    """Stages in tandem that are entered by one batch at a time, and by no more batches at once than there are."""

    def __init__(self, stages: Sequence[CostModel]) -> None:
        self.stages = stages
        self.left_ns: list[list[int]] = []
        """When each batch left each stage."""

    def run(self, now: int, stall: int, features: tuple[int, ...]) -> tuple[int, int, int]:
        """Send a batch in that has to wait for ``stall`` first.

        Returns:
            When the next batch may enter and when this one leaves, from now, and the stages' mean work.
        """
        work = [stage.step_ns(*features) for stage in self.stages]
        at, own = now + stall, []
        for stage, ns in enumerate(work):
            at = max(at, self.left_ns[-1][stage] if self.left_ns else 0) + ns
            own.append(at)
        self.left_ns.append(own)
        enter = own[0]
        # Batches leave in their order, so of those before this one at most the last few are under way.
        leaves = [batch[-1] for batch in self.left_ns[-len(work) :]]
        while sum(at > enter for at in leaves) >= len(work):
            enter = min(at for at in leaves if at > enter)
        return enter - now, own[-1] - now, sum(work) // len(work)
