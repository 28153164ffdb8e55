"""Answers of one token: probabilities against their definition, and what requests and replies look like."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cli import main
from gpu_runner.hybrid.completions import Refusal, Served, events, read_completion, reply
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.hybrid.scoring import Question, answer
from tests.seeded import cases, whole

VOCAB = 12
SERVED = Served("tiny", VOCAB, 50)


def logits_of(rng: random.Random) -> list[float]:
    """Make logits near each other or far apart, some of them equal."""
    far = rng.choice((0.0, 1e-6, 1.0, 80.0))
    some = (-far, far, 0.0, 0.5 * far)
    return [float(np.float32(rng.choice((rng.choice(some), rng.uniform(-far, far))))) for _ in range(VOCAB)]


def tokens_of(rng: random.Random) -> list[int]:
    return rng.sample(range(VOCAB), rng.choice((0, 1, VOCAB, rng.randint(0, VOCAB))))


def bias_of(rng: random.Random) -> dict[int, float]:
    return {t: rng.choice((0.0, -100.0, 100.0, rng.uniform(-100, 100), rng.uniform(-1, 1))) for t in tokens_of(rng)}


@cases(100, logits_of, tokens_of, bias_of, whole(0, VOCAB + 3))
def test_probabilities_by_their_definition(
    logits: list[float], allowed: list[int], bias: dict[int, float], top: int
) -> None:
    told = answer(np.array(logits, dtype=np.float32), Question(tuple(allowed), bias, top), 7)
    whole = math.fsum(math.exp(x - max(logits)) for x in logits)
    biased = [x + bias.get(t, 0.0) for t, x in enumerate(logits)]
    among = allowed or range(VOCAB)
    best = max(biased[t] for t in among)
    share = math.fsum(math.exp(biased[t] - best) for t in among)
    assert told.cached_tokens == 7
    assert biased[told.token] == pytest.approx(best)
    assert set(told.probabilities) == set(allowed or [told.token])
    for t, p in told.probabilities.items():
        assert p == pytest.approx(math.exp(biased[t] - best) / share, abs=1e-12)
    for t, p in told.logprobs.items():
        assert p == pytest.approx(logits[t] - max(logits) - math.log(whole), abs=1e-9)
    assert {told.token, *allowed} <= set(told.logprobs)
    if allowed:
        assert math.fsum(told.probabilities.values()) == pytest.approx(1)
    listed = sorted(told.logprobs.values(), reverse=True)[: min(top, VOCAB)]
    assert listed == sorted((told.logprobs.get(t, -math.inf) for t in range(VOCAB)), reverse=True)[: len(listed)]
    assert len(told.logprobs) >= min(top, VOCAB)


def body(**more: Any) -> dict[str, Any]:
    return {"prompt": [1, 2, 3], "max_tokens": 1, **more}


def test_a_request_says_what_is_asked() -> None:
    asked = read_completion(
        body(
            model="tiny",
            prompt=[[4, 5]],
            allowed_token_ids=[3, 2],
            logit_bias={"2": -1},
            logprobs=4,
            stream=True,
            stream_options={"include_usage": True},
            vllm_xargs={"prefillsim_tenant": "a"},
            temperature=0.3,
        ),
        SERVED,
    )
    assert asked.ids == [4, 5]
    assert asked.question == Question((3, 2), {2: -1.0}, 4)
    assert (asked.stream, asked.usage, asked.usage_at_once) == (True, True, False)
    assert asked.extra == {"prefillsim_tenant": "a"}


def anything(rng: random.Random, depth: int = 3) -> Any:
    """Make a value, or a list of some, or a list of such lists."""
    if depth and rng.randrange(2):
        return [anything(rng, rng.randrange(depth)) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    text = "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0xD800)))) for _ in range(rng.randint(0, 3)))
    number = rng.choice((1, -1)) * rng.choice((rng.randint(0, VOCAB), rng.randint(0, 300), rng.randrange(2**70)))
    return rng.choice((None, False, True, text, str(number), number, number, number))


@cases(100, anything)
def test_whatever_a_field_holds_the_request_is_read_or_refused(value: Any) -> None:
    for name in ("prompt", "max_tokens", "n", "logprobs", "allowed_token_ids", "logit_bias", "vllm_xargs", "model"):
        refused = None
        try:
            asked = read_completion(body(**{name: value}), SERVED)
            assert 0 < len(asked.ids) < 50
            assert max(asked.ids) < VOCAB
        except Refusal as refusal:
            refused = refusal
        assert refused is None or (400 <= refused.status < 500 and refused.body["error"]["message"])


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(Refusal, match="has no tokenizer"):
        read_completion(body(prompt="Yes or No?"), SERVED)


def test_the_usage_is_told_when_and_as_it_is_asked_for() -> None:
    said = answer(np.arange(VOCAB, dtype=np.float32), Question(), 2)
    for options in ({}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        asked = read_completion(body(stream=True, stream_options=options), SERVED)
        whole = reply(asked, said, SERVED, "cmpl-0", 5)
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert whole["choices"][0]["text"] == "token_id:11"
        assert whole["choices"][0]["logprobs"] is None
        told = events(asked, whole)
        json.dumps(told)
        assert len(told) == 1 + bool(options)
        assert ("usage" in told[0]) == ("continuous_usage_stats" in options)
        assert all("usage" in event and not event["choices"] for event in told[1:])


def test_the_engines_arguments_are_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert HybridOptions.of({"chunk": 64, "memory_gib": 2}, model="m").chunk == 64
    for text, told in (
        ("chunks=3", "the hybrid engine has no argument chunks; did you mean chunk?"),
        ("chunk=big", "chunk is 'big', but should be of type int"),
        ("chunk=-1", "chunk is -1; it must be at least 0"),
        ("memory_gib=0", "memory_gib is 0; it must be positive"),
        ("compiled=1", "compiled is 1, but should be of type bool"),
    ):
        out = str(tmp_path / "p.parquet")
        assert main(["profile", "--engine", "hybrid", "--model", "m", "-o", out, "--engine-arg", text]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--memory", "pool"], "No such option"),
        (["--set", "memory.regime=pool"], "a prefix store, no pool"),
        (["--suffix", "offload", "--set", "memory.cpu_gib=1"], "keeps or discards suffixes"),
        (["--pipeline-depth", "2"], "one step in flight"),
        (["--max-num-seqs", "8"], "one request at a time"),
        (["--max-num-batched-tokens", "512"], "--max-num-batched-tokens is vLLM's"),
        (["--set", "cluster.replicas=2"], "one hybrid engine"),
        (["--engine", "vlm"], "unknown engine 'vlm'; did you mean vllm?"),
    ],
)
def test_a_replay_is_refused_before_anything_starts(
    more: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["replay", "--engine", "hybrid", "--model", "m", "-p", "fcfs+full", "--workload", "post-recommendation"]
    assert main([*asked, *more]) == 2
    assert told in capsys.readouterr().err


def test_without_pytorch_one_sentence_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_runner.hybrid.options.find_spec", lambda name: None)
    for command in (
        ["serve-hybrid", "--model", "m"],
        ["replay", "--engine", "hybrid", "--model", "m", "-p", "fcfs+full", "--workload", "post-recommendation"],
    ):
        assert main(command) == 2
        assert "pip install 'prefillsim[hybrid]'" in capsys.readouterr().err
