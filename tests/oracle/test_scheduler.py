"""The scheduler inside the real vLLM: who is turned away, what a failing policy leaves behind, and who gets blocks."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels import load_cost_model
from gpu_runner import hooks
from gpu_runner.hooks import UnsupportedError
from gpu_runner.oracle import OUTPUT_IDS, Oracle, OracleOptions, engine_config
from gpu_runner.segments import read_telemetry, runs_of
from gpu_runner.settings import KEY, SettingsError
from policies.units import MS
from traces.schema import Segments, Trace

BLOCK = 16
BLOCKS = 400
COST = "sloweave-paper"
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def requests(parts: list[list[tuple[int, int]]], outputs: list[int], gap_ns: int = 0, **columns: Any) -> Trace:
    """Requests with prompts of (content, tokens) that come ``gap_ns`` apart."""
    flat = [p for prompt in parts for p in prompt]
    return Trace(
        np.arange(len(parts)) * gap_ns,
        np.array([sum(t for _, t in prompt) for prompt in parts]),
        np.array(outputs),
        segments=Segments(
            np.cumsum([0, *(len(p) for p in parts)]), np.array([c for c, _ in flat]), np.array([t for _, t in flat])
        ),
        **columns,
    )


def varied(n: int = 40, gap_ns: int = 3 * MS) -> Trace:
    """Prompts of 5 to 300 tokens, some with a beginning in common, and 1 to 30 outputs."""
    rng = np.random.default_rng(0)
    parts = [[(i % 3, 64), (100 + i, int(rng.integers(5, 240)))] for i in range(n)]
    return requests(parts, rng.integers(1, 30, n).tolist(), gap_ns)


class Driven:
    """An oracle that is stepped by hand, and what its clients are told."""

    def __init__(
        self, trace: Trace, policy: str | None, *, depth: int = 1, options: Any = None, **settings: Any
    ) -> None:
        additional = None if policy is None else {KEY: {"policy": policy, "cost_model": COST, **settings}}
        given = {"blocks": BLOCKS, "max_num_seqs": 32, "max_model_len": 600, "max_num_batched_tokens": 700}
        self.oracle = Oracle(
            trace,
            load_cost_model(COST),
            OracleOptions(**{**given, **(options or {})}, pipeline_depth=depth, additional=additional),
        )
        self.scheduler: Any = self.oracle.scheduler
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, str] = {}
        self.steps = 0
        self._came = 0

    def step(self) -> bool:
        """Take one step of the engine; return whether there is anything left to do."""
        oracle, core = self.oracle, self.oracle.core
        arrivals = oracle.trace.arrival_ns.tolist()
        if not self.scheduler.has_requests() and not core.batch_queue:
            if self._came == len(arrivals):
                return False
            oracle.now = max(oracle.now, arrivals[self._came])
        while self._came < len(arrivals) and arrivals[self._came] <= oracle.now:
            self.scheduler.add_request(oracle._request(self._came))
            self._came += 1
        self.steps += 1
        assert self.steps < 20_000, "the engine stands still"
        for outputs in (core.step_fn()[0] or {}).values():
            for output in outputs.outputs:
                number = int(output.request_id)
                self.tokens[number] += output.new_token_ids
                if output.finish_reason is not None:
                    assert number not in self.ends
                    self.ends[number] = str(output.finish_reason)
        return True

    def run(self, until: Callable[[], bool] = lambda: False) -> Driven:
        """Step until all have left, or something is so."""
        while not until() and self.step():
            pass
        return self

    def check_nothing_is_left(self) -> None:
        """All blocks are free, and nobody is known any more."""
        scheduler = self.scheduler
        assert hooks.free_blocks(scheduler) == self.oracle.options.blocks - 1
        assert not scheduler.requests
        assert not scheduler.running
        assert not len(scheduler.waiting)
        if isinstance(scheduler, hooks.Scheduler) and hasattr(scheduler, "settings"):
            assert not scheduler._numbers
            assert not scheduler.waiting._requests
            assert not scheduler._rejected

    def check_all_finished(self, numbers: Any = None) -> None:
        """Every request has got its tokens, in order and once each."""
        trace = self.oracle.trace
        for i in range(len(trace)) if numbers is None else numbers:
            expected = OUTPUT_IDS + i * (1 << 20) + np.arange(trace.output_tokens[i])
            assert self.tokens[i] == expected.tolist(), f"request {i}"
            assert self.ends[i] == "length"
        self.check_nothing_is_left()


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """What our scheduler logs as errors."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Lines(level=logging.ERROR), logging.getLogger("vllm.prefillsim")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


Plug = Callable[[str], str]


@pytest.fixture
def plug(tmp_path: Path) -> Plug:
    """Writes a plug-in and returns its path."""

    def write(source: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(f"import itertools, random\nfrom policies import *\nfrom policies.base import *\n{source}\n")
        return str(path)

    return write


PICKY = """
@register
class Picky(Admission):
    name = "picky"
    def admit(self, request, load):
        return Decision("reject", "too long for me") if request.prompt_tokens > 150 else ACCEPT
"""


@DEPTHS
def test_who_is_turned_away_is_told_and_leaves_nothing(plug: Plug, tmp_path: Path, depth: int) -> None:
    trace = varied()
    long = set(np.flatnonzero(trace.prompt_tokens > 150).tolist())
    assert 5 < len(long) < 35
    driven = Driven(
        trace, "fcfs+full+picky", depth=depth, plugins=[plug(PICKY)], record=True, telemetry=str(tmp_path / "t")
    ).run()
    assert {i for i, end in driven.ends.items() if end == "abort"} == long
    assert not any(driven.tokens[i] for i in long)
    driven.check_all_finished(set(range(len(trace))) - long)
    driven.scheduler.shutdown()
    _, logged = driven.oracle.recorded()
    assert logged.reasons == dict.fromkeys(sorted(long), "too long for me")
    told = read_telemetry(runs_of(tmp_path / "t")[0]).requests.to_pylist()
    assert sorted(r["request"] for r in told) == list(range(len(trace)))
    for row in told:
        turned_away = row["request"] in long
        assert (row["outcome"], row["reason"]) == (
            ("rejected", "too long for me") if turned_away else ("finished", None)
        )
        assert row["generated_tokens"] == (0 if turned_away else trace.output_tokens[row["request"]])


@DEPTHS
def test_all_may_be_turned_away(plug: Plug, depth: int) -> None:
    trace = requests([[(i, 200)] for i in range(10)], [3] * 10)
    driven = Driven(trace, "fcfs+full+picky", depth=depth, plugins=[plug(PICKY)]).run()
    assert driven.ends == dict.fromkeys(range(10), "abort")
    driven.check_nothing_is_left()


COUNTED = """
def late(n, count=itertools.count()):
    return next(count) >= n

def fail(n, value):
    if late(n):
        raise ValueError("oops")
    return value

mind = random.Random(0)
"""


def part(kind: str, method: str, *more: str) -> str:
    """A plug-in with one part, which answers as it should at first."""
    sound = (
        " def grant(self, batch): return Grant(64)"
        if kind.endswith("Chunking") and not method.startswith("grant")
        else ""
    )
    return "\n".join(["@register", f"class Bad({kind}):", ' name = "bad"', sound, f" def {method}", *more])


BAD: dict[str, tuple[str, str]] = {
    "grant raises": ("fcfs+bad", part("Chunking", "grant(self, batch): return fail(9, Grant(64))")),
    "grant is none": ("fcfs+bad", part("Chunking", "grant(self, batch): return None if late(9) else Grant(64)")),
    "half a token": ("fcfs+bad", part("Chunking", "grant(self, batch): return Grant(64.5 if late(9) else 64)")),
    "a negative grant": ("fcfs+bad", part("Chunking", "grant(self, batch): return Grant(-1 if late(9) else 64)")),
    "a grant for nobody": ("fcfs+bad", part("Chunking", "grant(self, batch): return Grant(64, 0 if late(9) else 1)")),
    "a cap of nothing": ("fcfs+bad", part("Chunking", "grant(self, batch): return Grant(64, 1, 0 if late(9) else 9)")),
    "deadline raises": ("fcfs+bad", part("Chunking", "deadline_ns(self, request): return fail(9, None)")),
    "deadline is text": (
        "fcfs+bad",
        part("Chunking", 'deadline_ns(self, request): return "soon" if late(9) else None'),
    ),
    "observe raises": ("fcfs+bad", part("Observer, Chunking", "observe(self, step): fail(9, None)")),
    "key raises": ("bad+full", part("Ordering", "key(self, request): return fail(9, -request.number)")),
    "key is text": (
        "bad+full",
        part("Ordering", 'key(self, request): return "a" if late(20) and request.number % 2 else 0'),
    ),
    "a later key raises": (
        "bad+full",
        part("Ordering", "key(self, request): return fail(60, request.uncached_tokens)", " cache_aware = True"),
    ),
    "key changes its mind": (
        "bad+full",
        part("Ordering", "key(self, request): return mind.randrange(4) if late(20) else 0", " cache_aware = True"),
    ),
    "choose raises": ("bad+full", part("Ordering", "choose(self, waiting, now_ns): return fail(9, waiting[-1])")),
    "choose names nobody": (
        "bad+full",
        part("Ordering", "choose(self, waiting, now_ns): return None if late(9) else waiting[0]"),
    ),
    "admit raises": ("fcfs+full+bad", part("Admission", "admit(self, request, load): return fail(9, ACCEPT)")),
    "admit says nothing": (
        "fcfs+full+bad",
        part("Admission", "admit(self, request, load): return None if late(9) else ACCEPT"),
    ),
    "admit says maybe": (
        "fcfs+full+bad",
        part("Admission", 'admit(self, request, load): return Decision("maybe") if late(9) else ACCEPT'),
    ),
}
"""Policies that fail once they have been asked so often."""


@DEPTHS
@pytest.mark.parametrize("blocks", [BLOCKS, 40])
@pytest.mark.parametrize("bad", BAD)
def test_a_failing_policy_falls_back_and_everybody_finishes(
    plug: Plug, tmp_path: Path, errors: list[str], bad: str, depth: int, blocks: int
) -> None:
    """Also with hardly more blocks than one request needs, so that some are preempted."""
    policy, source = BAD[bad]
    trace = varied(gap_ns=MS)
    driven = Driven(
        trace,
        policy,
        depth=depth,
        options={"blocks": blocks},
        plugins=[plug(COUNTED + source)],
        record=True,
        telemetry=str(tmp_path / "t"),
    ).run()
    driven.check_all_finished()
    assert driven.scheduler.fallen
    assert len(errors) == 1
    assert f"policy {policy} failed, and vLLM's own first come, first served takes its place" in errors[0]
    driven.scheduler.shutdown()
    assert len(errors) == 1
    told = read_telemetry(runs_of(tmp_path / "t")[0])
    assert told.info["fallback"]
    fallback = told.steps["fallback"].to_pylist()
    assert fallback == sorted(fallback)
    assert fallback[-1]
    assert not fallback[0]
    assert told.steps.num_rows == len(driven.oracle.batches)
    assert sorted(told.requests["request"].to_pylist()) == list(range(len(trace)))
    check_steps(driven, told.steps.to_pylist())
    _, logged = driven.oracle.recorded()
    assert (logged.requests["finished_ns"] >= 0).all()
    assert (logged.requests["first_token_ns"] >= 0).all()


def check_steps(driven: Driven, rows: list[dict[str, Any]]) -> None:
    """What is told of each step is what the executor was given, counted on its side."""
    for row, batch in zip(rows, driven.oracle.batches, strict=True):
        assert list(zip(row["batch_requests"], row["batch_tokens"], strict=True)) == list(map(tuple, batch.requests))
        assert row["decided_ns"] == batch.decided
        assert row["n_decode"] + row["n_prefill"] == len(batch.requests)
        assert row["n_decode"] + row["prefill_tokens"] == sum(tokens for _, tokens in batch.requests)
        features = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")
        assert row["predicted_ns"] == driven.oracle.cost.step_ns(*(row[f] for f in features)) == batch.duration


@DEPTHS
@pytest.mark.parametrize("blocks", [BLOCKS, 40])
def test_telemetry_of_a_good_policy(tmp_path: Path, depth: int, blocks: int) -> None:
    """Each row is what the executor saw, and a request's times are when its tokens came."""
    driven = Driven(varied(), "sloweave:tpot=40", depth=depth, options={"blocks": blocks}, telemetry=str(tmp_path))
    came: dict[int, list[int]] = defaultdict(list)
    while True:
        before = {i: len(t) for i, t in driven.tokens.items()}
        if not driven.step():
            break
        for i, tokens in driven.tokens.items():
            came[i] += [driven.oracle.now] * (len(tokens) - before.get(i, 0))
    driven.check_all_finished()
    driven.scheduler.shutdown()
    told = read_telemetry(runs_of(tmp_path)[0])
    check_steps(driven, told.steps.to_pylist())
    assert not any(told.steps["fallback"].to_pylist())
    assert max(told.steps["kv_blocks"].to_pylist()) <= blocks - 1
    for row in told.requests.to_pylist():
        times = came[row["request"]]
        assert (row["first_token_ns"], row["left_ns"]) == (times[0], times[-1])
        assert row["outcome"] == "finished"


UNSUPPORTED: list[tuple[str, Callable[[Any], None], str]] = [
    ("pipeline", lambda c: setattr(c.parallel_config, "pipeline_parallel_size", 2), "--pipeline-parallel-size"),
    ("data", lambda c: setattr(c.parallel_config, "data_parallel_size", 2), "--data-parallel-size"),
    ("context", lambda c: setattr(c.parallel_config, "decode_context_parallel_size", 2), "context parallelism"),
    ("speculative", lambda c: setattr(c, "speculative_config", object()), "--speculative-config"),
    ("connector", lambda c: setattr(c, "kv_transfer_config", object()), "--kv-transfer-config"),
    ("encoder", lambda c: setattr(c, "ec_transfer_config", object()), "encoder-cache connectors"),
    ("lora", lambda c: setattr(c, "lora_config", object()), "--enable-lora"),
    ("priority", lambda c: setattr(c.scheduler_config, "policy", "priority"), "--scheduling-policy priority"),
    ("whole", lambda c: setattr(c.scheduler_config, "enable_chunked_prefill", False), "--no-enable-chunked-prefill"),
    (
        "threshold",
        lambda c: setattr(c.scheduler_config, "long_prefill_token_threshold", 64),
        "--long-prefill-token-threshold",
    ),
    ("pooling", lambda c: setattr(c.model_config, "runner_type", "pooling"), "pooling models"),
]


@pytest.mark.parametrize(("change", "says"), [u[1:] for u in UNSUPPORTED], ids=[u[0] for u in UNSUPPORTED])
def test_what_policies_do_not_know_is_refused(change: Callable[[Any], None], says: str) -> None:
    """In one sentence that names what to change."""
    config = engine_config(OracleOptions(blocks=BLOCKS, max_model_len=600, additional={KEY: {"policy": "fcfs+full"}}))
    hooks.check(config)
    change(config)
    with pytest.raises(UnsupportedError, match=f"^prefillsim's scheduler does not support .*{says}[^.]*$"):
        hooks.check(config)


def test_other_releases_are_refused() -> None:
    hooks.check_version("0.32.0")
    for version in ("0.31.9", "0.3.2", "1.0", "0.320"):
        with pytest.raises(UnsupportedError, match=f"vLLM is {version}, but"):
            hooks.check_version(version)


def test_a_budget_that_does_not_hold_a_whole_prompt_is_refused_at_start() -> None:
    with pytest.raises(SettingsError, match=r"--max-num-batched-tokens is 631: raise it to 632"):
        Driven(varied(1), "fcfs+full", options={"max_num_batched_tokens": 631})
    Driven(varied(1), "fcfs+full", options={"max_num_batched_tokens": 632})


@DEPTHS
@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding"])
def test_a_client_that_goes_away_frees_its_blocks(tmp_path: Path, state: str, depth: int) -> None:
    trace = requests([[(i, 300)] for i in range(6)], [40] * 6)
    driven = Driven(trace, "fcfs+fixed:chunk=64", depth=depth, record=True, telemetry=str(tmp_path))
    victim = {"waiting": 5, "prefilling": 2, "decoding": 1}[state]

    def there() -> bool:
        request = driven.scheduler.requests.get(str(victim))
        if request is None:
            return False
        now = {
            "waiting": driven.steps == 12 and not request.num_computed_tokens,
            "prefilling": bool(request.num_computed_tokens and request.is_prefill_chunk),
            "decoding": request.num_output_tokens > 3,
        }
        return now[state]

    driven.run(there)
    assert there()
    free = hooks.free_blocks(driven.scheduler)
    held = len(driven.scheduler.kv_cache_manager.get_block_ids(str(victim))[0])
    assert (held > 0) == (state != "waiting")
    driven.oracle.core.abort_requests([str(victim)])
    assert hooks.free_blocks(driven.scheduler) == free + held
    driven.run()
    assert victim not in driven.ends
    driven.check_all_finished(set(range(6)) - {victim})
    driven.scheduler.shutdown()
    row = next(r for r in read_telemetry(runs_of(tmp_path)[0]).requests.to_pylist() if r["request"] == victim)
    assert (row["outcome"], row["reason"]) == ("aborted", "aborted by the client")
    assert row["generated_tokens"] == len(driven.tokens[victim])
    assert (row["first_token_ns"] is None) == (state != "decoding")


def hit_tokens(driven: Driven, number: int) -> int:
    """How much of a request's prompt would be served from the cache now."""
    return len(hooks.hit_blocks(driven.scheduler, driven.oracle._request(number))) * BLOCK


def first_free(driven: Driven, n: int) -> list[Any]:
    """The blocks that would be taken next."""
    return driven.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()[:n]


@pytest.mark.parametrize("policy", ["srjf-calibrated:lam=500+full", "fcfs+full"])
def test_blocks_that_nobody_else_can_reuse_are_forgotten(policy: str) -> None:
    """A prefill-only request's own blocks go first; what it found cached stays."""
    trace = requests([[(0, 64), (1, 64)], [(0, 64), (2, 80)], [(3, 64)]], [1, 5, 1], gap_ns=50 * MS)
    driven = Driven(trace, policy, discard=True)
    driven.run(lambda: 0 in driven.ends)
    # Nobody else was there, and it had found nothing.
    assert hit_tokens(driven, 1) == 0
    driven.run(lambda: 1 in driven.ends)
    # The second one is not prefill-only.
    assert hit_tokens(driven, 0) == 64
    driven.run()
    assert hit_tokens(driven, 2) == 0
    assert all(block.block_hash is None for block in first_free(driven, 4))
    assert hit_tokens(driven, 0) == 64
    driven.check_all_finished()


def test_what_a_request_found_cached_is_kept() -> None:
    trace = requests([[(0, 64), (1, 64)], [(0, 64), (2, 80)]], [2, 1], gap_ns=50 * MS)
    driven = Driven(trace, "fcfs+full", discard=True).run()
    assert hit_tokens(driven, 1) == 64
    assert hit_tokens(driven, 0) == 112
    assert all(block.block_hash is None for block in first_free(driven, 5))


def test_blocks_that_are_waited_for_are_kept() -> None:
    """The queue is known block by block where the ordering looks at the cache."""
    trace = requests([[(0, 64), (1, 64)], [(0, 64), (2, 80)]], [1, 1])
    driven = Driven(trace, "srjf-calibrated:lam=500+full", discard=True)
    driven.run(lambda: 0 in driven.ends)
    assert 1 not in driven.ends
    assert hit_tokens(driven, 1) == 64
    assert hit_tokens(driven, 0) == 64
    driven.run()
    assert driven.oracle.batches[1].requests == ((1, 80),)
    driven.check_all_finished()


def test_blocks_that_the_application_wants_are_kept() -> None:
    trace = requests([[(0, 64), (1, 64)], [(2, 64)]], [1, 1], gap_ns=50 * MS)
    driven = Driven(trace, "fcfs+full", discard=True)
    make = driven.oracle._request

    def keeping(number: int) -> Any:
        request = make(number)
        request.sampling_params.extra_args = {"prefillsim_keep_tokens": 40}
        return request

    driven.oracle._request = keeping  # type: ignore[method-assign]
    driven.run()
    # Whole blocks only.
    assert hit_tokens(driven, 0) == 32
    assert hit_tokens(driven, 1) == 32


def test_nothing_is_forgotten_unless_that_is_asked_for() -> None:
    trace = requests([[(0, 64), (1, 64)]], [1])
    driven = Driven(trace, "fcfs+full").run()
    assert hit_tokens(driven, 0) == 112


def test_a_request_s_own_objective_is_its_deadline() -> None:
    """A stricter objective of the one that decodes makes the next one's chunks smaller."""

    def chunks(own: int | None) -> list[int]:
        columns = {} if own is None else {"slo_tpot_ns": np.array([own, -1])}
        trace = requests([[(0, 16)], [(1, 580)]], [60, 1], gap_ns=2 * MS, **columns)
        driven = Driven(trace, "sloweave", slo="tpot_p99:3").run()
        driven.check_all_finished()
        return [tokens for batch in driven.oracle.batches for number, tokens in batch.requests if number == 1]

    usual = chunks(None)
    assert len(usual) > 1
    assert chunks(3 * MS) == usual
    assert len(chunks(2 * MS)) > len(usual)
    assert chunks(100 * MS) == [580]


def test_wishes_that_make_no_sense_are_ignored(errors: list[str]) -> None:
    driven = Driven(varied(3), "sloweave:tpot=40")
    make = driven.oracle._request

    def odd(number: int) -> Any:
        request = make(number)
        request.sampling_params.extra_args = {"prefillsim_tpot_ms": "soon"}
        return request

    driven.oracle._request = odd  # type: ignore[method-assign]
    driven.run().check_all_finished()
    assert not errors


def test_a_name_may_be_used_again() -> None:
    """As when a client goes away and asks again at once."""
    trace = requests([[(0, 100)], [(1, 100)]], [20, 20])
    driven = Driven(trace, "fcfs+full")
    driven.run(lambda: len(driven.tokens[0]) == 3)
    driven.oracle.core.abort_requests(["0"])
    driven.tokens[0].clear()
    driven.oracle._sampled[0] = 0
    driven.scheduler.add_request(driven.oracle._request(0))
    driven.run().check_all_finished()
