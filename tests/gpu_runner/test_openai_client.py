"""The streaming client against a server of the standard library, and its tables against loops over tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gpu_runner.live import client_run, replay_live
from gpu_runner.openai_client import Answer, ServerError, _Stream, completion, find_server
from gpu_runner.replay import paced
from sim.objectives import Objectives
from sim.records import FINISHED, REJECTED, UNFINISHED
from sim.store import read_run, write_run
from tests.gpu_runner.fake_server import TOKEN_S, FakeServer, fake_server
from tests.seeded import cases, maybe, pick, wide
from traces import Trace

MS = 1_000_000


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def trace_of(n: int, gap_ms: int = 5, outputs: int = 5, tenants: list[str] | None = None) -> Trace:
    return Trace(
        np.arange(n) * gap_ms * MS,
        np.full(n, 20),
        np.full(n, outputs),
        tenant=None if tenants is None else np.array(tenants, dtype=object),
    )


def test_every_token_of_every_request_is_timed(server: FakeServer, tmp_path: Path) -> None:
    trace = trace_of(20)
    run, sent = replay_live(trace, find_server(server.url), 1024)
    requests = run.requests
    assert requests["outcome"].tolist() == [FINISHED] * 20
    assert requests["generated_tokens"].tolist() == [5] * 20
    assert sent.count == sent.finished == 20
    assert sent.stopped is None
    times = run.tokens["time_ns"].reshape(20, 5)
    assert (np.diff(times, axis=1) >= 0).all()
    assert (requests["sent_ns"] >= trace.arrival_ns).all()
    # A token takes the server at least so long, so nothing can come sooner.
    assert (times[:, 0] - requests["sent_ns"] >= TOKEN_S * 1e9).all()
    assert (times[:, -1] - requests["sent_ns"] >= 5 * TOKEN_S * 1e9).all()
    assert (requests["ttft_ns"] == times[:, 0] - trace.arrival_ns).all()
    assert (requests["jct_ns"] == times[:, -1] - trace.arrival_ns).all()

    write_run(tmp_path / "run", trace, run, {"replay": sent.facts()}, summary=run.summary(Objectives()))
    run.write_tokens(tmp_path / "run", trace)
    stored = read_run(tmp_path / "run")
    assert stored.requests["ttft_ns"].tolist() == requests["ttft_ns"].tolist()
    assert len(stored.steps["start_ns"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] == 20
    assert summary["ttft_p50_ms"] == pytest.approx(np.percentile(requests["ttft_ns"], 50) / MS)
    assert summary["utilisation"] is None


def test_requests_say_what_the_trace_says(server: FakeServer) -> None:
    trace = Trace(
        np.arange(2), np.array([3, 4]), np.array([2, 3]), slo_ttft_ns=np.array([-1, 5 * MS]),
        slo_tpot_ns=np.array([1_500_000, -1]), session=np.array(["u", None], dtype=object),
    )  # fmt: skip
    replay_live(trace, find_server(f"{server.url}/v1/", "other", "secret"), 500)
    for seen in server.seen:
        assert (seen["path"], seen["model"], seen["authorization"]) == ("/v1/completions", "other", "Bearer secret")
        assert seen["ignore_eos"] is True
        assert seen["stream"] is True
    first, second = sorted(server.seen, key=lambda body: len(body["prompt"]))
    assert (first["max_tokens"], second["max_tokens"]) == (2, 3)
    assert first["vllm_xargs"] == {"prefillsim_tpot_ms": 1.5, "prefillsim_session": "u"}
    assert second["vllm_xargs"] == {"prefillsim_ttft_ms": 5.0}
    assert all(0 <= t < 500 for body in (first, second) for t in body["prompt"])


def test_requests_do_not_wait_for_each_other(server: FakeServer) -> None:
    n, outputs = 40, 20
    run, _ = replay_live(paced(trace_of(n, outputs=outputs), saturate=True), find_server(server.url), 1024)
    assert run.requests["outcome"].tolist() == [FINISHED] * n
    alone = outputs * TOKEN_S * 1e9
    assert run.requests["finished_ns"].max() < 0.5 * n * alone


def test_what_goes_wrong_with_one_request_is_its_outcome(server: FakeServer) -> None:
    ways = ["ok", "refused", "broken", "failing", "double", "plain", "cached", "ok"]
    run, sent = replay_live(trace_of(len(ways), tenants=ways), find_server(server.url), 1024)
    outcome = dict(zip(ways, run.requests["outcome"].tolist(), strict=True))
    assert outcome == {
        "ok": FINISHED,
        "refused": REJECTED,
        "broken": UNFINISHED,
        "failing": UNFINISHED,
        "double": FINISHED,
        "plain": FINISHED,
        "cached": FINISHED,
    }
    assert run.requests["generated_tokens"].tolist() == [5, 0, 2, 2, 5, 5, 5, 5]
    assert run.requests["cached_tokens"].tolist() == [-1, -1, -1, -1, -1, -1, 16, -1]
    assert run.reasons[1] == "the server answered 400 Bad Request: the prompt is too long"
    assert run.reasons[2] == "the answer broke off"
    assert run.reasons[3] == "the server failed: engine died"
    assert sent.count == sent.finished == len(ways)


def test_a_server_that_goes_away_rejects_what_follows(server: FakeServer) -> None:
    gone = dataclasses.replace(find_server(server.url), port=unused_port())
    run, sent = replay_live(trace_of(3), gone, 1024)
    assert run.requests["outcome"].tolist() == [REJECTED] * 3
    assert all("connection failed" in reason for reason in run.reasons.values())
    assert sent.facts()["late_max_ms"] is None


def test_an_interrupt_keeps_what_has_come(server: FakeServer) -> None:
    def stop(sent: int, finished: int) -> None:
        if finished == 3:
            raise KeyboardInterrupt

    trace = trace_of(30, gap_ms=20)
    run, sent = replay_live(trace, find_server(server.url), 1024, progress=stop)
    assert sent.stopped == "interrupted"
    assert 3 <= sent.count < 30
    assert len(run.requests["outcome"]) == sent.count
    assert np.count_nonzero(run.requests["outcome"] == FINISHED) >= 3
    assert (run.requests["outcome"] == UNFINISHED).sum() + (run.requests["outcome"] == REJECTED).sum() >= 1


def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def test_a_server_that_cannot_be_used_is_one_sentence(server: FakeServer) -> None:
    with pytest.raises(ServerError, match=r"no server answers at http://127\.0\.0\.1:\d+: Connection refused"):
        find_server(f"http://127.0.0.1:{unused_port()}")
    for url in ("ftp://host:1", "http://", "http://host:port", "host:99999"):
        with pytest.raises(ServerError, match="should read http://HOST:PORT"):
            find_server(url)
    with pytest.raises(ServerError, match="does not serve big; it serves tiny, other"):
        find_server(server.url, "big")
    server.models = {"data": []}
    with pytest.raises(ServerError, match="serves no model"):
        find_server(server.url)
    server.models = {"nothing": 1}
    with pytest.raises(ServerError, match="is no OpenAI-compatible server"):
        find_server(server.url)


EVENTS = [
    {"choices": [{"text": "é\n"}], "usage": {"completion_tokens": 1}},
    {"choices": [{"text": ""}], "usage": {"completion_tokens": 2}},
    {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 4}},
    {"choices": [], "usage": {"completion_tokens": 4}},
]
TOKENS = [1, 1, 2, 0]


def chunked(texts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(t), t) for t in [*texts, b""])


def places(rng: random.Random) -> list[float]:
    """Make up to twelve shares of an answer, some of them close together."""
    some: list[float] = []
    for _ in range(rng.randint(0, 12)):
        some.append(rng.random() if not some or rng.randrange(2) else some[-1] + rng.choice((-2, -1, 1, 2)) / 500)
    return some


@cases(200, places, pick(False, True))
def test_tokens_come_with_the_piece_that_completes_them(cut: list[float], in_chunks: bool) -> None:
    """However the network cuts an answer, a token's time is that of the piece with its event's last byte."""
    texts = [b"data: " + json.dumps(e, ensure_ascii=False).encode() + b"\n\n" for e in EVENTS] + [b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n" if in_chunks else b"") + b"\r\n"
    body = chunked(texts) if in_chunks else b"".join(texts)
    raw = head + body
    cuts = sorted({min(max(round(share * len(raw)), 1), len(raw) - 1) for share in cut})
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    answer = read_pieces(pieces)
    assert answer.finished
    assert answer.problem is None
    if in_chunks:
        ends = [len(head) + len(chunked(texts[: i + 1])) - len(b"\r\n0\r\n\r\n") for i in range(len(texts))]
        expected = [sum(cut < end for cut in cuts) for end in ends]
    else:
        expected = [len(pieces) - 1] * len(texts)  # without chunks nothing tells where events end until the end
    assert answer.token_ns == [t for t, n in zip(expected, TOKENS, strict=False) for _ in range(n)]


def read_pieces(pieces: list[bytes]) -> Answer:
    times = iter(range(len(pieces)))
    ended = Future[None]()
    stream = _Stream(b"", lambda: next(times), cast("asyncio.Future[None]", ended))  # an event loop takes long to make
    for piece in pieces:
        stream.data_received(piece)
    stream.connection_lost(None)
    assert ended.done()
    answer = Answer(stream=stream)
    answer.settle()
    return answer


def test_the_last_chunk_ends_an_answer_before_the_server_closes_wherever_it_is_cut() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked([b"data: [DONE]\n\n"])
    for step in range(1, 9):
        ended = Future[None]()
        stream = _Stream(b"", lambda: 0, cast("asyncio.Future[None]", ended))
        for start in range(0, len(raw), step):
            assert not ended.done()
            stream.data_received(raw[start : start + step])
        assert ended.done()


def test_an_answer_cut_anywhere_is_never_taken_for_a_whole_one() -> None:
    texts = [b"data: " + json.dumps(e).encode() + b"\n\n" for e in EVENTS] + [b"data: [DONE]\n\n"]
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(texts)
    whole = raw.index(b"[DONE]\n\n") + len(b"[DONE]\n\n")
    for end in range(whole):
        answer = read_pieces([raw[:end]] if end else [])
        assert not answer.finished
        assert answer.problem


Drawn = tuple[int, list[int], bool, int | None]


def answers(rng: random.Random) -> list[Drawn]:
    """Make arrivals, gaps, whether the answer is whole, and cached tokens; some at once, and some gaps of nothing."""
    most = rng.choice((1, 1000, 10**8))
    return [
        (
            rng.choice((0, rng.randint(0, 10**9))),
            [rng.choice((0, rng.randint(0, most))) for _ in range(rng.randint(0, 8))],
            rng.random() < 0.5,
            rng.choice((None, rng.randint(0, 10))),
        )
        for _ in range(rng.randint(1, 8))
    ]


@cases(200, answers, maybe(wide(10**8, 1)))
def test_metrics_of_a_client_equal_a_loop_over_its_tokens(drawn: list[Drawn], tpot: int | None) -> None:
    drawn.sort(key=lambda row: row[0])
    n, epoch = len(drawn), 10**18
    trace = Trace(np.array([a for a, *_ in drawn]), np.full(n, 10), np.array([max(len(g), 1) for _, g, *_ in drawn]))
    given_back = [
        Answer(epoch + a, (epoch + a + 10 + np.cumsum(g)).tolist(), c, done and bool(g)) for a, g, done, c in drawn
    ]
    run = client_run(trace, given_back, epoch)
    summary = run.summary(Objectives(tpot=tpot))
    # Ties between tokens are put a nanosecond apart, so gaps may be off by as many as there are tokens.
    slack = sum(len(g) for _, g, *_ in drawn) / MS
    gaps = [g for _, all_gaps, *_ in drawn for g in all_gaps[1:]]
    assert summary["itl_max_ms"] == (pytest.approx(max(gaps) / MS, abs=slack) if gaps else None)
    if gaps:
        assert summary["itl_p99_ms"] == pytest.approx(np.percentile(gaps, 99) / MS, abs=slack)
    ttft = [10 + g[0] for _, g, *_ in drawn if g]
    assert summary["ttft_mean_ms"] == (pytest.approx(np.mean(ttft) / MS) if ttft else None)
    done = [g for _, g, finished, _ in drawn if finished and g]
    assert summary["finished"] == len(done)
    assert summary["rejected"] == sum(not g for _, g, *_ in drawn)
    means = [(np.mean(g[1:]) if g[1:] else 0.0) for g in done]
    met = sum(tpot is None or mean <= tpot for mean in means)
    border = sum(tpot is not None and abs(mean - tpot) * MS < 1e-3 + slack * MS * MS for mean in means)
    timed = [np.mean(g[1:]) for _, g, *_ in drawn if g[1:]]
    assert summary["tpot_mean_ms"] == (pytest.approx(np.mean(timed) / MS, abs=slack) if timed else None)
    attained = round((summary["slo_attainment"] or 0) * n)
    assert abs(attained - met) <= border
    known = all(c is not None for _, g, finished, c in drawn if finished and g)
    assert (summary["hit_rate"] is None) or known
    assert summary["queue_mean"] is None


def test_a_completion_request_asks_for_exact_tokens() -> None:
    body = json.loads(completion("m", [1, 2], 7, {}))
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], "vllm_xargs" in body) == ([1, 2], 7, True, False)


def test_objectives_hold_for_what_a_client_sees() -> None:
    """Two requests, one token late: the shares are those of the definitions."""
    trace = Trace(np.array([0, 0]), np.array([10, 10]), np.array([2, 2]))
    run = client_run(trace, [Answer(0, [5, 10], None, True), Answer(0, [5, 30], None, True)], 0)
    summary = run.summary(Objectives(tpot_p99=10))
    assert summary["slo_attainment"] == 0.5
    assert summary["late_gap_share"] == 0.5
