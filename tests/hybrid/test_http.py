"""The OpenAI-compatible front of the hybrid engine: a real server, and clients that are not its own."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runner.hybrid.engine import HybridEngine
from gpu_runner.hybrid.loading import tokenizer_of
from gpu_runner.hybrid.options import HybridOptions, open_hybrid
from gpu_runner.live import replay_live
from gpu_runner.model import tiny_llama
from gpu_runner.openai_client import find_server
from gpu_runner.settings import Settings
from sim.records import FINISHED
from tests.gpu_runner.test_hybrid_scheduler import made

uvicorn = pytest.importorskip("uvicorn", reason="the server needs uvicorn: pip install 'prefillsim[hybrid]'")
pytest.importorskip("fastapi", reason="the server needs FastAPI: pip install 'prefillsim[hybrid]'")

from gpu_runner.hybrid.completions import Served  # noqa: E402
from gpu_runner.hybrid.server import listen, make_app  # noqa: E402
from gpu_runner.hybrid.service import Service  # noqa: E402

LONGEST = 512


class Running:
    def __init__(self, engine: HybridEngine, service: Service, port: int) -> None:
        self.engine, self.service, self.port = engine, service, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST" if body is not None else "GET", path, text if body is not None else None)
            answer = connection.getresponse()
            content = answer.read()
            kind = answer.getheader("Content-Type") or ""
            return answer.status, json.loads(content) if kind.startswith("application/json") else content.decode()
        finally:
            connection.close()


@contextmanager
def running(engine: HybridEngine, served: Served) -> Iterator[Running]:
    service = Service(engine)
    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(make_app(service, served), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Running(engine, service, sock.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), layers=1, hidden=64, max_len=LONGEST)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    options = HybridOptions(str(model), dtype="float32", load_format="dummy", blocks=200, device="cpu", chunk=64)
    with open_hybrid(options, Settings(policy="prefillonly+queue-limit:limit=4")) as engine:
        served = Served("tiny", engine.vocab, engine.max_model_len, tokenizer_of(options))
        with running(engine, served) as it:
            yield it


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": list(range(1, 60)), "max_tokens": 1, **more}


def logprobs_of(engine: HybridEngine, ids: list[int]) -> Any:
    logits = engine.runner.prefiller.prefill(torch.tensor(ids))
    return torch.log_softmax(logits.double(), -1).numpy()


def test_the_answer_is_how_probable_each_allowed_token_is(server: Running) -> None:
    status, told = server.ask(asked(allowed_token_ids=[7, 300, 12], logprobs=2))
    assert status == 200
    plain = logprobs_of(server.engine, list(range(1, 60)))
    choice = told["choices"][0]
    given = {p["token_id"]: p for p in choice["allowed_token_probabilities"]}
    among = np.exp(plain[[7, 300, 12]]) / np.exp(plain[[7, 300, 12]]).sum()
    for i, token in enumerate((7, 300, 12)):
        assert given[token]["logprob"] == pytest.approx(plain[token], abs=1e-4)
        assert given[token]["probability"] == pytest.approx(among[i], abs=1e-5)
    assert choice["token_ids"] == [(7, 300, 12)[int(among.argmax())]]
    top = choice["logprobs"]["top_logprobs"][0]
    assert max(top.values()) == pytest.approx(plain.max(), abs=1e-4)
    assert choice["logprobs"]["token_logprobs"][0] == pytest.approx(plain[choice["token_ids"][0]], abs=1e-4)
    assert told["usage"]["completion_tokens"] == 1


def test_a_bias_of_100_is_as_good_as_a_list(server: Running) -> None:
    status, told = server.ask(asked(logit_bias={"9": 100, "10": 100}))
    assert status == 200
    plain = logprobs_of(server.engine, list(range(1, 60)))
    assert told["choices"][0]["token_ids"] == [9 if plain[9] > plain[10] else 10]


def test_text_goes_through_the_tokenizer(server: Running) -> None:
    status, told = server.ask(asked(prompt="Would this user like the post? Answer Yes or No:"))
    assert status == 200
    assert told["usage"]["prompt_tokens"] > 10
    assert isinstance(told["choices"][0]["text"], str)


def test_a_second_request_finds_the_first_ones_blocks(server: Running) -> None:
    ids = [500 + i for i in range(100)]
    cached = [server.ask(asked(prompt=ids))[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 96]


def test_models_and_health(server: Running) -> None:
    assert server.ask(None, "/health") == (200, {"status": "ok"})
    status, told = server.ask(None, "/v1/models")
    assert status == 200
    assert [(m["id"], m["max_model_len"]) for m in told["data"]] == [("tiny", LONGEST)]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{", 400, "not JSON"),
        ([1], 400, "JSON object"),
        ({"prompt": [1]}, 400, "max_tokens is not given, which means 16"),
        (asked(max_tokens=2), 400, "max_tokens is 2; this server answers with one token"),
        (asked(n=2), 400, "n is 2"),
        (asked(echo=True), 400, "echo is not possible"),
        (asked(model="other"), 404, "the model other is not served here; tiny is"),
        (asked(prompt=[]), 400, "the prompt is empty"),
        (asked(prompt=[[1], [2]]), 400, "one text or one list"),
        (asked(prompt=[1] * LONGEST), 400, "the prompt has 512 tokens and the answer 1"),
        (asked(prompt=[1, 99_999]), 400, "token 99999 is in the prompt"),
        (asked(allowed_token_ids=[5000]), 400, "token 5000 is allowed, but the model's tokens are 0 to 1023"),
        (asked(allowed_token_ids=[]), 400, "at least one token id"),
        (asked(logit_bias={"a": 1}), 400, "logit_bias should be"),
        (asked(logprobs=21), 400, "from 0 to 20"),
        (asked(vllm_xargs={"prefillsim_ttft_ms": -1}), 400, "prefillsim_ttft_ms is -1"),
    ],
)
def test_what_cannot_be_done_is_refused(server: Running, body: Any, status: int, told: str) -> None:
    got, content = server.ask(body)
    assert got == status
    assert told in content["error"]["message"]


def test_a_replay_over_http(server: Running) -> None:
    """The repository's own client, streaming, with prompts that share their beginnings."""
    trace = made([(i * 20_000_000, i % 3, 40, 5 + i) for i in range(20)])
    run, sent = replay_live(trace, find_server(server.url), server.engine.vocab)
    assert sent.stopped is None
    assert run.reasons == {}
    assert run.requests["outcome"].tolist() == [FINISHED] * 20
    assert run.requests["generated_tokens"].tolist() == [1] * 20
    cached = run.requests["cached_tokens"].tolist()
    assert cached == [0] * 3 + [32] * 17


class Held:
    """Holds the model back until it is let go."""

    def __init__(self, engine: HybridEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.prompts: list[int] = []
        serve = engine.runner.serve

        def held(ids: Any, keep: int, question: Any) -> Any:
            self.begun.set()
            assert self.go.wait(20)
            self.prompts.append(len(ids))
            if len(ids) == 13:
                raise RuntimeError("out of memory")
            return serve(ids, keep, question)

        monkeypatch.setattr(engine.runner, "serve", held)


def wait_for(what: Any) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_order_refusals_failures_and_clients_that_go_away(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server.engine, monkeypatch)
    scheduler = server.engine.scheduler
    answers: dict[int, tuple[int, Any]] = {}

    def ask(tokens: int) -> threading.Thread:
        body = asked(prompt=[(tokens + i) % 1000 for i in range(tokens)])
        thread = threading.Thread(target=lambda: answers.update({tokens: server.ask(body)}))
        thread.start()
        return thread

    threads = [ask(20)]
    assert held.begun.wait(20)
    for tokens in (200, 13, 100):
        before = len(scheduler._inbox)
        threads.append(ask(tokens))
        wait_for(lambda before=before: len(scheduler._inbox) > before)
    leaver = http.client.HTTPConnection("127.0.0.1", server.port)
    leaver.request("POST", "/v1/completions", json.dumps(asked(prompt=[3] * 50)))
    wait_for(lambda: len(scheduler._inbox) == 4)
    leaver.close()
    wait_for(lambda: len(scheduler._aborted) == 1)
    held.go.set()
    for thread in threads:
        thread.join()
    assert held.prompts == [20, 13, 100, 200]
    assert {n: status for n, (status, _) in answers.items()} == {20: 200, 13: 500, 100: 200, 200: 200}
    assert answers[13][1]["error"]["message"] == "the prefill failed: RuntimeError: out of memory"


def test_admission_is_a_429(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server.engine, monkeypatch)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(server.ask(asked())[0])) for _ in range(6)]
    threads[0].start()
    assert held.begun.wait(20)
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: len(server.engine.scheduler._inbox) == 5)
    held.go.set()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 5 + [429]


def test_probabilities_add_up(server: Running) -> None:
    _, told = server.ask(asked(allowed_token_ids=list(range(100)), logit_bias={"5": -3.5}))
    total = sum(p["probability"] for p in told["choices"][0]["allowed_token_probabilities"])
    assert math.isclose(total, 1, rel_tol=1e-9)
