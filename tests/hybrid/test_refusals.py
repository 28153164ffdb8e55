"""What cannot be proved token-wise is refused, by name and with a reason; what can be is folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from gpu_runner.hybrid.capture import capture
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import Executor, Switches
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.parts import Plan
from gpu_runner.hybrid.prefill import Prefiller
from gpu_runner.hybrid.stages import plan
from tests.hybrid.small import GQA, prefiller, tokens

WIDTH = 8


class Made(nn.Module):
    """An embedding and one function of its rows [1, n, 8]."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.square = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.function = function

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        return (self.function(self.embedding(input_ids), self.square),)


def folded(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> tuple[Made, Plan]:
    made = Made(function)
    return made, plan(capture(made))


TOKEN_WISE = {
    "layer norm": lambda x, w: nn.functional.layer_norm(x, (WIDTH,)),
    "softmax over features": lambda x, w: x.softmax(-1),
    "bias": lambda x, w: nn.functional.linear(x, w, w[0]),
    "heads": lambda x, w: (x.view(1, -1, 2, 4).transpose(1, 2) * 2).permute(0, 2, 1, 3).reshape(1, -1, 8),
    "halves": lambda x, w: torch.cat((x.split(4, -1)[1], x.chunk(2, -1)[0]), -1),
    "sum kept": lambda x, w: x - x.sum(-1, keepdim=True),
    "sum and back": lambda x, w: x * x.amax(2).unsqueeze(2),
    "transposed": lambda x, w: (w @ x[0].t()).t()[None],
    "selected": lambda x, w: x * x.select(-1, 3)[..., None],
    "gelu of a product": lambda x, w: nn.functional.gelu(x @ w) * w[0],
    "clamped": lambda x, w: torch.where(x > 0, x, 0.1 * x).clamp(max=2).to(torch.float64),
}


@pytest.mark.parametrize("name", TOKEN_WISE)
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_token_wise_functions_give_the_same_in_chunks(name: str, chunk: int) -> None:
    made, stages = folded(TOKEN_WISE[name])
    ids = tokens(23, vocab=50)[None]
    executor = Executor(stages, dict(made.named_parameters()), Switches(chunk))
    ours = executor.run(ids, torch.arange(23)[None], lambda *_: pytest.fail("there is no attention"))
    torch.testing.assert_close(ours, made(ids, None, False)[0])
    assert len(stages.stages) == 1


MIXING = {
    "mean over tokens": (lambda x, w: x - x.mean(1, keepdim=True), "aten.mean.dim .*reduces over the tokens"),
    "mean of all": (lambda x, w: x - x.mean(), "aten.mean.default .*nothing is known"),
    "softmax over tokens": (lambda x, w: x.softmax(1), "normalises over the tokens"),
    "cumulative": (lambda x, w: x.cumsum(1), "aten.cumsum.default .*nothing is known"),
    "tokens times tokens": (lambda x, w: (x[0] @ x[0].t() @ x[0])[None], "aten.mm.default"),
    "shifted": (lambda x, w: torch.cat((x[:, 1:], x[:, :1]), 1), "is not a row for each"),
    "last token": (lambda x, w: x + x[:, -1:], "takes some of the tokens|takes one of the tokens"),
    "flipped": (lambda x, w: x.flip(1), "aten.flip.default .*nothing is known"),
    "doubled": (lambda x, w: torch.cat((x, x), 1), "strings tokens together|more than one row|is not a row for each"),
    "scaled by the length": (lambda x, w: x * x.shape[1], "computes with the number of tokens"),
    "scaled by half the length": (lambda x, w: x * (x.shape[1] // 2), "computed from the number of tokens"),
    "counted": (lambda x, w: x + torch.arange(x.shape[1], device=x.device)[None, :, None], "rows of its own"),
    "dropout": (lambda x, w: nn.functional.dropout(x, 0.5, True), "nothing is known|random"),
    "in place": (lambda x, w: x.mul_(2), "nothing is known"),
    "tokens into features": (lambda x, w: x.transpose(1, 2).reshape(1, -1, 8), "mixes the tokens' dimension"),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_tokens_is_refused_by_name(name: str) -> None:
    function, text = MIXING[name]
    with pytest.raises(HybridError, match=text) as error:
        folded(function)
    assert "cannot prove that" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_forward_pass_for_one_length_is_refused() -> None:
    with pytest.raises(HybridError, match="one number of tokens"):
        folded(lambda x, w: x if x.shape[1] == 61 else x + 1)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_one_virtual_layer_between_two_attentions(layers: int) -> None:
    stages = plan(capture(build_model("qwen3", GQA, layers=layers).get_decoder())).stages
    assert [s.attention is not None for s in stages] == [False, True] * layers + [False]
    assert [s.attention[1] for s in stages if s.attention] == list(range(layers))
    between = {s.key for s in stages[2:-1] if s.attention is None}
    assert len(between) == min(1, layers - 1)


def test_a_sliding_window_is_refused() -> None:
    sliding = build_model("mistral", GQA)
    sliding.config.sliding_window = 8
    for layer in sliding.model.layers:
        layer.self_attn.sliding_window = 8
    with pytest.raises(HybridError, match=r"sliding_window|attention_mask"):
        Prefiller(sliding)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: build_model("lama", GQA), "unknown architecture 'lama'; did you mean llama"),
        (lambda: Switches(0), "chunk is 0; it must be at least 1"),
        (lambda: Switches(8, preallocate=False), "in_place needs preallocate"),
        (lambda: prefiller("llama").prefill(tokens(0)), "at least one token"),
        (lambda: prefiller("llama").prefill(tokens(3), keep=4), "keep is 4 of 3 new tokens"),
        (lambda: prefiller("llama").prefill(tokens(3), keep=2), "needs a sink"),
    ],
)
def test_wrong_requests(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(HybridError, match=text):
        call()


def test_eight_bit_weights_are_close() -> None:
    coarse = Prefiller(build_model("llama", replace(GQA, linear_bytes=1), dtype=torch.float32, seed=3))
    ids = tokens(40)
    whole = coarse.with_switches(Switches(None)).prefill(ids)
    torch.testing.assert_close(coarse.with_switches(Switches(7)).prefill(ids), whole)
    assert torch.corrcoef(torch.stack((whole, prefiller("llama").prefill(ids))))[0, 1] > 0.98
