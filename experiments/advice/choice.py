"""Which of the finalists to recommend: the one of least effort among those that nothing is surely better than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.advice.candidates import Candidate
from experiments.capacity.search import Verdict
from experiments.compare import Estimate, estimates
from sim.metrics import Summary
from sim.stats import Interval, holm, p_value, paired

ALPHA = 0.05

NEGLIGIBLE = 0.005
"""Attainment that is not worth any effort: half a point."""

METRICS = (
    "slo_attainment",
    "goodput",
    "throughput",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "ttft_mean_ms",
    "hit_rate",
    "preemptions",
)


@dataclass(frozen=True)
class Standing:
    """A finalist on the fresh seeds."""

    candidate: Candidate
    metrics: dict[str, Estimate]
    verdict: Verdict
    """Whether it holds the level there."""
    behind: Interval
    """Attainment of the best less its own, on the same seeds."""
    p: float
    """Of that difference, by Holm for the number of finalists; 1 for the best itself."""

    @property
    def policy(self) -> str:
        """As the user would write it."""
        return self.candidate.policy

    @property
    def attainment(self) -> float:
        """The mean over seeds."""
        return self.metrics["slo_attainment"].mean or 0.0

    @property
    def surely_behind(self) -> bool:
        """Whether it is told apart from the best."""
        return self.p < ALPHA

    @property
    def as_good(self) -> bool:
        """Whether it is not told apart from the best, or behind it by less than is worth an effort."""
        return not self.surely_behind or (self.behind.mean or 0.0) < NEGLIGIBLE


@dataclass(frozen=True)
class Choice:
    """What to recommend, and beside what."""

    standings: list[Standing]
    """By mean attainment, the best first."""
    recommended: Standing

    @property
    def best(self) -> Standing:
        """The one of the highest mean attainment."""
        return self.standings[0]

    @property
    def tied(self) -> list[Standing]:
        """Those as good as the best, itself included."""
        return [s for s in self.standings if s.as_good]

    @property
    def all_tied(self) -> bool:
        """Whether it does not matter which of the finalists is taken."""
        return len(self.tied) == len(self.standings)

    def runner_up(self) -> Standing | None:
        """Return the best of the others."""
        return next((s for s in self.standings if s is not self.recommended), None)

    def of(self, policy: str) -> Standing | None:
        """Return a finalist's standing."""
        return next((s for s in self.standings if s.policy == policy), None)


def choose(
    finalists: Sequence[Candidate], runs: Mapping[str, Sequence[Summary]], verdicts: Mapping[str, Verdict]
) -> Choice:
    """Rank finalists and recommend one.

    Args:
        finalists: at least one.
        runs: summaries by policy, all on the same seeds.
        verdicts: by policy, whether it surely holds the wanted level.
    """
    measured = {c.policy: estimates([dict(s) for s in runs[c.policy]], METRICS) for c in finalists}

    def merit(c: Candidate) -> tuple[float, float]:
        own = measured[c.policy]
        return own["slo_attainment"].mean or 0.0, -c.effort

    ordered = sorted(finalists, key=merit, reverse=True)
    values = {c.policy: measured[c.policy]["slo_attainment"].per_seed for c in ordered}
    first = values[ordered[0].policy]
    adjusted = [1.0, *holm([p_value(first, values[c.policy]) for c in ordered[1:]])]
    standings = [
        Standing(c, measured[c.policy], verdicts[c.policy], paired(first, values[c.policy]).difference, p)
        for c, p in zip(ordered, adjusted, strict=True)
    ]
    as_good = [s for s in standings if s.as_good]
    sure = [s for s in as_good if s.verdict is Verdict.HOLDS] or as_good

    def ease(s: Standing) -> tuple[float, float, float]:
        return s.candidate.effort, -s.attainment, s.metrics["ttft_mean_ms"].mean or 0.0

    return Choice(standings, min(sure, key=ease))
