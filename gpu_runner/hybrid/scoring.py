"""The answer of a prefill-only request: how probable each allowed token is (PrefillOnly §2, Yes or No)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_runner.hybrid.errors import HybridError

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Question:
    """What is asked of the next token.

    Attributes:
        allowed: token ids that it may be; empty allows all.
        bias: added to logits before probabilities, by token id, as OpenAI's ``logit_bias``.
        top: how many of the most probable tokens to tell of, beside the allowed ones.
    """

    allowed: tuple[int, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    top: int = 0

    def check(self, vocab: int) -> None:
        """Refuse tokens that the model does not have.

        Raises:
            HybridError: with the first of them.
        """
        for what, tokens in (("allowed", self.allowed), ("biased", tuple(self.bias))):
            for token in tokens:
                if not 0 <= token < vocab:
                    raise HybridError(f"token {token} is {what}, but the model's tokens are 0 to {vocab - 1}")
        if len(set(self.allowed)) < len(self.allowed):
            raise HybridError("an allowed token is listed twice")


@dataclass(frozen=True)
class Answer:
    """What the model says.

    Attributes:
        token: the most probable one of those allowed.
        probabilities: of the allowed tokens, biased, which add up to 1; of ``token`` alone where all are allowed.
        logprobs: natural logarithms of the probabilities over the whole vocabulary, without bias: of ``token``, the
            allowed ones and the most probable ones.
        cached_tokens: of the prompt, that the prefix store served.
    """

    token: int
    probabilities: Mapping[int, float]
    logprobs: Mapping[int, float]
    cached_tokens: int = 0


def answer(logits: Logits, question: Question, cached_tokens: int = 0) -> Answer:
    """Answer a question from the logits of the next token, [vocabulary]."""
    scores = np.asarray(logits, dtype=np.float64)
    plain = scores - _log_sum(scores)
    biased = scores
    if question.bias:
        biased = scores.copy()
        biased[list(question.bias)] += list(question.bias.values())
    if question.allowed:
        among = np.array(question.allowed)
        chances = np.exp(biased[among] - _log_sum(biased[among]))
        token = int(among[int(chances.argmax())])
        probabilities = dict(zip(among.tolist(), chances.tolist(), strict=True))
    else:
        token = int(biased.argmax())
        probabilities = {token: float(np.exp(biased[token] - _log_sum(biased)))}
    told = [token, *question.allowed, *_highest(plain, question.top)]
    return Answer(token, probabilities, {t: float(plain[t]) for t in told}, cached_tokens)


def _log_sum(scores: NDArray[np.float64]) -> Any:
    top = scores.max()
    return top + np.log(np.exp(scores - top).sum())


def _highest(scores: NDArray[np.float64], count: int) -> list[int]:
    if not count:
        return []
    count = min(count, len(scores))
    found = np.argpartition(-scores, count - 1)[:count]
    best: list[int] = found[np.argsort(-scores[found], kind="stable")].tolist()
    return best
