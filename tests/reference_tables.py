"""The requests of the naive loop, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies import RequestView
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, UNFINISHED, Columns
from tests.blockwise import BlockwisePool
from tests.tables import RunTables
from traces import NONE, Trace


@dataclass(eq=False)
class Request:
    """One request and everything that happens to it."""

    view: RequestView
    outputs: int
    computed: int = 0
    """Tokens in the cache, those of the steps in flight included."""
    hashed: int = 0
    """As many of them have been entered in the prefix cache, in full blocks."""
    hits: int = 0
    """Cached tokens at its first start."""
    outcome: int = UNFINISHED
    visible_step: int = NULL
    """The step that is decided next when it has arrived; in the table only if there is such a step."""
    chunk_steps: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)
    """The steps that output its tokens, those in flight included."""
    delivered: int = 0
    """Outputs that are known: their steps have ended."""
    preempted: int = 0

    @property
    def prompt(self) -> int:
        return self.view.prompt_tokens

    @property
    def tokens(self) -> int:
        """All there are: what it prefills if it has to begin, or to begin again."""
        return self.prompt + len(self.token_steps)

    @property
    def missing(self) -> int:
        return self.tokens - self.computed

    @property
    def placeholders(self) -> int:
        """Outputs on their way."""
        return len(self.token_steps) - self.delivered

    def hold(self, pool: BlockwisePool, upto: int, valid: int) -> None:
        """Take blocks for ``upto`` tokens, and enter those that are full of ``valid`` tokens, all of them known."""
        number = self.view.number
        pool.take(pool.missing(number, upto))
        pool.tables[number] += pool.anonymous
        pool.anonymous.clear()
        self.hashed = max(self.hashed, min(valid, self.prompt + self.delivered))
        pool.extend(number, self.hashed)

    @property
    def only_decodes(self) -> bool:
        """The cache lacks nothing but its newest output."""
        return self.missing == 1 and self.computed >= self.prompt


def requests_of(trace: Trace, goals: Objectives) -> list[Request]:
    def own(column: np.ndarray | None, i: int, default: int | None) -> int | None:
        return default if column is None or column[i] == NONE else int(column[i])

    return [
        Request(
            RequestView(
                i,
                int(trace.arrival_ns[i]),
                int(trace.prompt_tokens[i]),
                slo_ttft_ns=own(trace.slo_ttft_ns, i, goals.ttft),
                slo_tpot_ns=own(trace.slo_tpot_ns, i, goals.deadline_ns),
                tenant=None if trace.tenant is None else trace.tenant[i],
                session=None if trace.session is None else trace.session[i],
            ),
            int(trace.output_tokens[i]),
        )
        for i in range(len(trace))
    ]


FEATURES = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")
STEP_COLUMNS = (
    "decided_ns",
    "start_ns",
    *FEATURES,
    "waiting",
    "granted_tokens",
    "exception",
    "duration_ns",
    "predicted_ns",
    "kv_blocks",
    "busy_ns",
    "replica",
)
CHUNK_COLUMNS = ("step", "request", "tokens")
PREEMPTION_COLUMNS = ("step", "request", "after", "until")


def tables_of(
    trace: Trace,
    requests: list[Request],
    steps: list[dict[str, int]],
    chunks: list[tuple[int, ...]],
    preemptions: list[list[int]],
    reasons: dict[int, str],
) -> RunTables:
    """Return the tables of what has happened to the requests."""
    return RunTables(
        _request_table(trace, requests, steps),
        {name: np.array([s[name] for s in steps], dtype=np.int64) for name in STEP_COLUMNS},
        _columns(CHUNK_COLUMNS, chunks),
        reasons,
        _columns(PREEMPTION_COLUMNS, preemptions),
    )


def _columns(names: tuple[str, ...], rows: Sequence[Sequence[int]]) -> Columns:
    return {name: np.array([row[j] for row in rows], dtype=np.int64) for j, name in enumerate(names)}


def _request_table(trace: Trace, requests: list[Request], steps: list[dict[str, int]]) -> Columns:
    rows = []
    for i, r in enumerate(requests):
        times = [steps[k]["start_ns"] + steps[k]["duration_ns"] for k in r.token_steps]
        gaps = np.diff(times)
        started = bool(r.chunk_steps)
        finished = r.outcome == FINISHED
        rows.append(
            {
                "arrival_ns": r.view.arrival_ns,
                "visible_step": r.visible_step if r.visible_step < len(steps) else NULL,
                "first_scheduled_ns": steps[r.chunk_steps[0]]["start_ns"] if started else NULL,
                "first_token_ns": times[0] if times else NULL,
                "finished_ns": times[-1] if finished else NULL,
                "prompt_tokens": r.prompt,
                "cached_tokens": r.hits if started else NULL,
                "output_tokens": r.outputs,
                "generated_tokens": len(times),
                "chunks": len(r.chunk_steps),
                "preemptions": r.preempted,
                "replica": 0,
                "outcome": r.outcome,
                "aged_chunks": sum(steps[k]["exception"] for k in r.chunk_steps),
                "slo_exceptions": sum(steps[k]["exception"] for k in r.token_steps[1:]),
                "ttft_ns": times[0] - r.view.arrival_ns if times else NULL,
                "tpot_mean_ns": sum(gaps.tolist()) / len(gaps) if len(gaps) else np.nan,
                "tpot_p99_ns": np.percentile(gaps, 99) if len(gaps) else np.nan,
                "itl_max_ns": max(gaps.tolist(), default=NULL),
                "jct_ns": times[-1] - r.view.arrival_ns if finished else NULL,
                "slo_ttft_ns": NULL if trace.slo_ttft_ns is None else trace.slo_ttft_ns[i],
                "slo_tpot_ns": NULL if trace.slo_tpot_ns is None else trace.slo_tpot_ns[i],
            }
        )
    return {
        name: np.array([row[name] for row in rows], dtype=float if name.startswith("tpot") else np.int64)
        for name in REQUEST_COLUMNS
    }


REQUEST_COLUMNS = (
    "arrival_ns",
    "visible_step",
    "first_scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "generated_tokens",
    "chunks",
    "preemptions",
    "replica",
    "outcome",
    "aged_chunks",
    "slo_exceptions",
    "ttft_ns",
    "tpot_mean_ns",
    "tpot_p99_ns",
    "itl_max_ns",
    "jct_ns",
    "slo_ttft_ns",
    "slo_tpot_ns",
)
