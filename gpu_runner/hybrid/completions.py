"""OpenAI's completions for one token: what a request asks for, and the reply with its probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.scoring import Answer, Question

MOST_LOGPROBS = 20


class Refusal(Exception):
    """A request that is answered with an error; the message says what would be right."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.status = param, status

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class Served:
    """What a server serves.

    Attributes:
        name: of the model.
        vocab: its tokens.
        max_model_len: most tokens of a request, its one output included.
        tokenizer: of transformers, ``None`` where there is none.
    """

    name: str
    vocab: int
    max_model_len: int
    tokenizer: Any = None

    def text(self, token: int) -> str:
        """Return a token as text; without a tokenizer, as vLLM writes token ids."""
        return f"token_id:{token}" if self.tokenizer is None else str(self.tokenizer.decode([token]))


@dataclass(frozen=True)
class Completion:
    """One request.

    Attributes:
        ids: the prompt's tokens.
        question: what is asked of the next one.
        extra: of :class:`gpu_runner.settings.Wishes`.
        logprobs: how many tokens the reply lists; ``None`` for no list.
        stream: whether the reply comes as events.
        usage: whether an event of its own tells the usage.
        usage_at_once: whether every event tells it.
    """

    ids: list[int]
    question: Question
    extra: Mapping[str, Any]
    logprobs: int | None
    stream: bool
    usage: bool
    usage_at_once: bool


def read_completion(body: Any, served: Served) -> Completion:
    """Return what the body of a request asks for.

    ``prompt`` is text or token ids. ``allowed_token_ids`` (vLLM's) are the tokens that may be answered, ``logit_bias``
    (OpenAI's) is added to logits. The answer is the most probable token whatever ``temperature`` and the like say.

    Raises:
        Refusal: if it asks for what this server does not do, or is no completion at all.
    """
    if not isinstance(body, dict):
        raise Refusal("the body should be a JSON object with a prompt")
    model = body.get("model")
    if model not in (None, served.name):
        raise Refusal(f"the model {model} is not served here; {served.name} is", "model", 404)
    most = body.get("max_tokens", 16)
    if most != 1 or isinstance(most, bool):
        told = f"max_tokens is {most}" if "max_tokens" in body else "max_tokens is not given, which means 16"
        raise Refusal(f"{told}; this server answers with one token, so max_tokens must be 1", "max_tokens")
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            raise Refusal(f"{name} is {body[name]}; this server gives one answer, so it must be 1", name)
    for name in ("echo", "suffix", "use_beam_search", "prompt_logprobs"):
        if body.get(name):
            raise Refusal(f"{name} is not possible here; leave it out", name)
    ids = _prompt(body.get("prompt"), served)
    logprobs = body.get("logprobs")
    if logprobs is not None and (not _whole(logprobs) or not 0 <= logprobs <= MOST_LOGPROBS):
        raise Refusal(f"logprobs is {logprobs!r}; it should be a number from 0 to {MOST_LOGPROBS}", "logprobs")
    question = Question(_allowed(body.get("allowed_token_ids")), _bias(body.get("logit_bias")), logprobs or 0)
    try:
        question.check(served.vocab)
    except HybridError as e:
        raise Refusal(str(e), "allowed_token_ids" if question.allowed else "logit_bias") from None
    extra, options = body.get("vllm_xargs") or {}, body.get("stream_options") or {}
    for name, value in (("vllm_xargs", extra), ("stream_options", options)):
        if not isinstance(value, dict):
            raise Refusal(f"{name} should be an object", name)
    at_once = bool(options.get("continuous_usage_stats"))
    return Completion(
        ids, question, extra, logprobs, bool(body.get("stream")), bool(options.get("include_usage")), at_once
    )


def reply(completion: Completion, answer: Answer, served: Served, request_id: str, created: int) -> dict[str, Any]:
    """Return the whole reply; log-probabilities are those over the whole vocabulary, without bias.

    Where tokens were allowed, the choice also has ``allowed_token_probabilities``, which add up to 1.
    """
    choice: dict[str, Any] = {
        "index": 0,
        "text": served.text(answer.token),
        "logprobs": None if completion.logprobs is None else _logprobs(answer, served.text),
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [answer.token],
    }
    if completion.question.allowed:
        choice["allowed_token_probabilities"] = [
            {"token_id": t, "token": served.text(t), "probability": p, "logprob": answer.logprobs[t]}
            for t, p in answer.probabilities.items()
        ]
    return {
        "id": request_id,
        "object": "text_completion",
        "created": created,
        "model": served.name,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(completion.ids),
            "completion_tokens": 1,
            "total_tokens": len(completion.ids) + 1,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        },
    }


def events(completion: Completion, whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a streamed reply: the token, and the usage if asked for."""
    usage = whole["usage"]
    bare = {k: v for k, v in whole.items() if k != "usage"}
    told = [bare | {"usage": usage} if completion.usage_at_once else bare]
    if completion.usage:
        told.append({**bare, "choices": [], "usage": usage})
    return told


def _logprobs(answer: Answer, text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "text_offset": [0],
        "tokens": [text(answer.token)],
        "token_logprobs": [answer.logprobs[answer.token]],
        "top_logprobs": [{text(t): value for t, value in answer.logprobs.items()}],
    }


def _prompt(prompt: Any, served: Served) -> list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if served.tokenizer is None:
            raise Refusal("the prompt is text, but the model here has no tokenizer; send token ids", "prompt")
        prompt = served.tokenizer(prompt)["input_ids"]
    if not isinstance(prompt, list) or not all(map(_whole, prompt)):
        raise Refusal("prompt should be one text or one list of token ids", "prompt")
    if not prompt:
        raise Refusal("the prompt is empty; it must have at least one token", "prompt")
    if len(prompt) >= served.max_model_len:
        raise Refusal(
            f"the prompt has {len(prompt)} tokens and the answer 1, but a request may have {served.max_model_len}",
            "prompt",
        )
    if not 0 <= min(prompt) <= max(prompt) < served.vocab:
        wrong = next(t for t in prompt if not 0 <= t < served.vocab)
        raise Refusal(f"token {wrong} is in the prompt, but the model's are 0 to {served.vocab - 1}", "prompt")
    return prompt


def _allowed(tokens: Any) -> tuple[int, ...]:
    if tokens is None:
        return ()
    if not isinstance(tokens, list) or not tokens or not all(map(_whole, tokens)):
        raise Refusal("allowed_token_ids should be a list of at least one token id", "allowed_token_ids")
    return tuple(tokens)


def _bias(biases: Any) -> dict[int, float]:
    if biases is None:
        return {}
    try:
        bias = {int(token): float(value) for token, value in biases.items()}
    except (AttributeError, TypeError, ValueError):
        bias = {0: 101.0}
    if not all(-100 <= value <= 100 for value in bias.values()):
        raise Refusal("logit_bias should be an object from token ids to numbers from -100 to 100", "logit_bias")
    return bias


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
