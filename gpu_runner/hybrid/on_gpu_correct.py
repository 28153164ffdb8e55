"""On a GPU: hybrid prefilling against transformers' own forward pass, in bf16."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from gpu_runner.hybrid.execute import Switches
from gpu_runner.hybrid.on_gpu_book import Part
from gpu_runner.hybrid.on_gpu_subject import BLOCK, Subject
from gpu_runner.hybrid.prefill import Kept

MOST = 2e-2
CLEAR = 4
"""Roundings between the two largest logits from which on their order is clear."""
SEEDS = (0, 1, 2)


def correct(subject: Subject, part: Part) -> None:
    """Compare logits, without a prefix and with half of the prompt cached.

    A row has the largest difference of two logits, that over the largest logit, and whether the best token is the same
    and clearly the best. ``noise`` is what transformers' own two attentions differ by, on the same prompt.
    """
    eager, sdpa = (_decoder(subject, name) for name in ("eager", "sdpa"))
    found: dict[tuple[int, int], tuple[Any, float]] = {}
    cases = itertools.product(SEEDS, subject.sizes.prompts, subject.sizes.chunks, (False, True))
    for seed, tokens, chunk, cached in part.cases(cases):
        ids = subject.ids(tokens, seed)
        if (seed, tokens) not in found:
            plain = _plain(subject, eager, ids)
            found[seed, tokens] = plain, _error(_plain(subject, sdpa, ids), plain)[1]
        plain, noise = found[seed, tokens]
        logits = _hybrid(subject, ids, chunk, tokens // 2 // BLOCK * BLOCK if cached else 0)
        difference, error = _error(logits, plain)
        best, second = plain.topk(2).values.tolist()
        part.add(
            tokens=tokens,
            cached=tokens // 2 // BLOCK * BLOCK if cached else 0,
            chunk=chunk,
            seed=seed,
            difference=difference,
            error=error,
            noise=noise,
            same_best=bool(logits.argmax() == plain.argmax()),
            clear=best - second >= CLEAR * abs(best) * torch.finfo(torch.bfloat16).eps,
        )
    rows = part.rows
    largest = {name: max(row[name] for row in rows) for name in ("difference", "error", "noise")}
    part.summary |= {
        "largest_difference": largest["difference"],
        "largest_error": largest["error"],
        "largest_noise": largest["noise"],
        "differences_within_0.02": largest["difference"] <= MOST,
        "errors_within_0.02_of_the_largest_logit": largest["error"] <= MOST,
        "clear": sum(row["clear"] for row in rows),
        "same_best_where_clear": all(row["same_best"] for row in rows if row["clear"]),
    }


def _decoder(subject: Subject, attention: str) -> Any:
    config = copy.deepcopy(subject.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    return model.eval().get_decoder()


def _plain(subject: Subject, decoder: Any, ids: Any) -> Any:
    """Return the logits of transformers' own forward pass with the subject's weights, in float32."""
    positions = torch.arange(ids.shape[0], device=ids.device)[None]
    kwargs = {"input_ids": ids[None], "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        hidden = torch.func.functional_call(decoder, subject.prefiller.weights, (), kwargs)[0]
    return subject.prefiller.logits(hidden).float()


def _hybrid(subject: Subject, ids: Any, chunk: int, cached: int) -> Any:
    ours = subject.prefiller.with_switches(Switches(chunk))
    prefix = Kept(cached)
    if cached:
        ours.prefill(ids[:cached], keep=cached, sink=prefix)
    return ours.prefill(ids[cached:], prefix=prefix if cached else None).float()


def _error(logits: Any, plain: Any) -> tuple[float, float]:
    difference = float((logits - plain).abs().max())
    return difference, difference / float(plain.abs().max())
