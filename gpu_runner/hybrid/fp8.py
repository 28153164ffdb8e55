"""Linear operators with 8-bit weights and a scale per output, as in FP8-dynamic checkpoints."""

from __future__ import annotations

from typing import Any

import torch

ROWS = 4096
"""Outputs whose weights are widened at once."""


def _fp8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    for lo in range(0, weight.shape[0], ROWS):
        hi = lo + ROWS
        wide = weight[lo:hi].to(x.dtype) * scale[lo:hi].to(x.dtype)
        out[..., lo:hi] = torch.nn.functional.linear(x, wide, None if bias is None else bias[lo:hi])
    return out


def _shape(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_fp8_linear.__annotations__ = {
    **dict.fromkeys(("x", "weight", "scale", "return"), torch.Tensor),
    "bias": torch.Tensor | None,
}
_operator = torch.library.custom_op("prefillsim::fp8_linear", _fp8_linear, mutates_args=())
_operator.register_fake(_shape)

FP8_LINEAR: Any = torch.ops.prefillsim.fp8_linear.default
"""The operator: (x [..., in], weight [out, in] in FP8, scale [out, 1], bias [out] or None) to [..., out]."""


class Fp8Linear(torch.nn.Module):
    """A linear operator whose weights take one byte each; activations stay as they are."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True).clamp(min=1e-12).float() / 448
        weight = (linear.weight / scale).to(torch.float8_e4m3fn)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.scale = torch.nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FP8_LINEAR(x, self.weight, self.scale, self.bias)


def to_fp8(module: Any) -> None:
    """Put 8-bit weights in the place of all linear operators inside ``module``."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            with torch.no_grad():
                setattr(module, name, Fp8Linear(child))
        else:
            to_fp8(child)
