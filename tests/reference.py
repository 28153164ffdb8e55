"""The engine written naively: one token per decode per step in a loop, nothing counted, heaped or skipped.

It shares the policies, the cost models and the views with the engine, and nothing else. Slow on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodels import CostModel
from policies import BatchView, Candidate, Grant, LoadView, Policy, RequestView, StepRecord
from sim.engine import Limits
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, OUTCOMES, REJECTED, UNFINISHED, Columns
from tests.tables import RunTables
from traces import NONE, Trace


@dataclass
class Request:
    """One request and everything that happens to it."""

    view: RequestView
    outputs: int
    computed: int = 0
    outcome: int = UNFINISHED
    visible_step: int = NULL
    """The step that is decided next when it has arrived; in the table only if there is such a step."""
    chunk_steps: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)

    @property
    def prompt(self) -> int:
        return self.view.prompt_tokens

    @property
    def context(self) -> int:
        """Tokens in the KV cache: the newest output is not in it yet."""
        return self.prompt + len(self.token_steps) - 1


def reference(
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    *,
    predictor: CostModel | None = None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
) -> RunTables:
    """Return what ``sim.engine.simulate`` should return for the same arguments."""
    predictor, limits = predictor or cost, limits or Limits()
    policy.reset(predictor)
    ordering, chunking, admission = policy.ordering, policy.chunking, policy.admission
    seats = chunking.seat_limit(limits.max_num_seqs)
    requests = _requests(trace, objectives or Objectives())
    future, waiting, prefilling, decoding = list(requests), [], [], []
    steps: list[dict[str, int]] = []
    chunks: list[tuple[int, int, int]] = []
    reasons: dict[int, str] = {}
    now = 0

    def seat_free(taken: int = 0) -> bool:
        return bool(waiting) and (seats is None or len(prefilling) + len(decoding) + taken < seats)

    while limits.horizon_ns is None or now < limits.horizon_ns:
        while future and future[0].view.arrival_ns <= now:
            r = future.pop(0)
            r.visible_step = len(steps)
            contexts = [d.context for d in decoding]
            if limits.max_model_len is not None and r.prompt + r.outputs > limits.max_model_len:
                r.outcome = REJECTED
                reasons[r.view.number] = (
                    f"{r.prompt} prompt and {r.outputs} output tokens exceed max_model_len {limits.max_model_len}"
                )
                continue
            if admission is not None:
                load = LoadView(
                    now, len(decoding), sum(contexts), max(contexts, default=0), len(prefilling), len(waiting)
                )
                decision = admission.admit(r.view, load)
                if decision.verdict != "accept":
                    r.outcome = OUTCOMES.index(decision.verdict + "ed")
                    reasons[r.view.number] = decision.reason
                    continue
            waiting.append(r)
        if not (prefilling or decoding or waiting):
            if not future:
                break
            now = future[0].view.arrival_ns
            continue

        contexts = [d.context for d in decoding]
        n_waiting = len(waiting)
        grant = Grant(0)
        if prefilling or seat_free():
            deadlines = [now + d for r in decoding if (d := chunking.deadline_ns(r.view)) is not None]
            candidates = [Candidate(r.view, r.computed, r.prompt - r.computed) for r in prefilling]
            rest = [r.view for r in waiting] if seat_free() else []
            while rest and len(candidates) < chunking.lookahead and seat_free(len(candidates) - len(prefilling)):
                view = ordering.choose(rest, now)
                rest.remove(view)
                candidates.append(Candidate(view, 0, view.prompt_tokens))
            grant = chunking.grant(
                BatchView(
                    now,
                    len(decoding),
                    sum(contexts),
                    max(contexts, default=0),
                    min(deadlines, default=None),
                    tuple(candidates),
                    n_waiting,
                )
            )
        batch: list[tuple[Request, int]] = []
        left = grant.tokens
        while left > 0 and (grant.prefills is None or len(batch) < grant.prefills):
            if len(batch) == len(prefilling):
                if not seat_free():
                    break
                view = ordering.choose([r.view for r in waiting], now)
                started = next(r for r in waiting if r.view is view)
                waiting.remove(started)
                prefilling.append(started)
            r = prefilling[len(batch)]
            tokens = min(left, r.prompt - r.computed, *([] if grant.cap is None else [grant.cap]))
            batch.append((r, tokens))
            left -= tokens

        features = (
            len(decoding),
            sum(contexts),
            max(contexts, default=0),
            len(batch),
            sum(c for _, c in batch),
            sum(sum(range(r.computed + 1, r.computed + c + 1)) for r, c in batch),
        )
        duration = cost.step_ns(*features)
        steps.append(
            {
                "start_ns": now,
                **dict(zip(FEATURES, features, strict=True)),
                "waiting": n_waiting,
                "granted_tokens": grant.tokens,
                "exception": int(grant.exception),
                "duration_ns": duration,
                "predicted_ns": predictor.step_ns(*features) if policy.needs_predictor else NULL,
                "kv_blocks": NULL,
                "busy_ns": duration,
                "replica": 0,
            }
        )
        step = len(steps) - 1
        for r in decoding:
            r.token_steps.append(step)
        for r, c in batch:
            chunks.append((step, r.view.number, c))
            r.chunk_steps.append(step)
            r.computed += c
            if r.computed == r.prompt:
                r.token_steps.append(step)
                prefilling.remove(r)
                decoding.append(r)
        for r in [r for r in decoding if len(r.token_steps) == r.outputs]:
            r.outcome = FINISHED
            decoding.remove(r)
        for part in policy.observers:
            part.observe(StepRecord(now, now, duration, *features))
        now += duration
    return RunTables(
        _request_table(trace, requests, steps),
        {name: np.array([s[name] for s in steps], dtype=np.int64) for name in STEP_COLUMNS},
        {name: np.array([c[j] for c in chunks], dtype=np.int64) for j, name in enumerate(CHUNK_COLUMNS)},
        reasons,
    )


FEATURES = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")
STEP_COLUMNS = (
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


def _requests(trace: Trace, goals: Objectives) -> list[Request]:
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
                "cached_tokens": 0 if started else NULL,
                "output_tokens": r.outputs,
                "generated_tokens": len(times),
                "chunks": len(r.chunk_steps),
                "preemptions": 0,
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
