"""Shapes of language models and data sheets of GPUs, by name, from data files that say where each number is from."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from fractions import Fraction
from importlib import resources
from typing import Any

from costmodels.base import CostModelError


class HardwareError(CostModelError):
    """A model or GPU that is unknown or cannot be used so; the message says what would be right."""


@dataclass(frozen=True)
class LlmShape:
    """The shape of a dense decoder with grouped-query attention and a gated MLP.

    ``linear_bytes`` is the size of one weight of the layers' linear operators. Embedding, head, norms and biases
    are 16 bit in every checkpoint (FP8-dynamic quantises the linear operators alone).

    Raises:
        HardwareError: if a size is not a positive whole number, or the heads do not share the KV heads evenly.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    linear_bytes: int = 2
    activation_bytes: int = 2
    kv_bytes: int = 2
    qkv_bias: bool = False
    tied_embeddings: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        _positive(self, f"model {self.name}")
        if self.heads % self.kv_heads:
            raise HardwareError(
                f"model {self.name}: {self.heads} heads cannot share {self.kv_heads} KV heads evenly; "
                "heads must be a multiple of kv_heads"
            )

    @property
    def qkv(self) -> int:
        """Width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def linear_parameters_per_layer(self) -> int:
        """Weights of one layer's four linear operators: QKV, attention output, gate and up, down."""
        attention = self.hidden * self.qkv + self.heads * self.head_dim * self.hidden
        return attention + 3 * self.hidden * self.intermediate

    @property
    def linear_parameters(self) -> int:
        """Weights of all layers' linear operators."""
        return self.layers * self.linear_parameters_per_layer

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output head that are stored beside the embedding; 0 where it is the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def other_parameters(self) -> int:
        """Norms and biases."""
        return (2 * self.layers + 1) * self.hidden + self.layers * self.qkv * self.qkv_bias

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.linear_parameters + self.embedding_parameters + self.head_parameters + self.other_parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.linear_parameters * self.linear_bytes + 2 * (
            self.embedding_parameters + self.head_parameters + self.other_parameters
        )

    @property
    def kv_bytes_per_token_and_layer(self) -> int:
        """Bytes that one token's keys and values take in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers."""
        return self.layers * self.kv_bytes_per_token_and_layer

    @property
    def mlp_up_bytes_per_token(self) -> int:
        """Bytes of the MLP's first intermediate tensor, gate and up fused (PrefillOnly, Figure 4)."""
        return 2 * self.intermediate * self.activation_bytes

    @property
    def mlp_down_bytes_per_token(self) -> int:
        """Bytes of the MLP's second intermediate tensor, the down projection's input (PrefillOnly, Figure 4)."""
        return self.intermediate * self.activation_bytes

    @property
    def mlp_up_ratio(self) -> Fraction:
        """The first intermediate tensor over one layer's KV; 14 for Llama-3.1-8B (PrefillOnly §4.1)."""
        return Fraction(self.mlp_up_bytes_per_token, self.kv_bytes_per_token_and_layer)

    @property
    def mlp_down_ratio(self) -> Fraction:
        """The second intermediate tensor over one layer's KV; 7 for Llama-3.1-8B (PrefillOnly §4.1)."""
        return Fraction(self.mlp_down_bytes_per_token, self.kv_bytes_per_token_and_layer)


@dataclass(frozen=True)
class Gpu:
    """One GPU's data sheet: dense peaks in FLOP/s, bandwidths in bytes per second, links in one direction.

    ``memory_bytes`` is what CUDA reports to a process, less than the nominal size. ``fp8_flops_per_s`` is None
    without FP8 tensor cores, ``nvlink_bytes_per_s`` where two cards of the set-up have no NVLink between them.

    Raises:
        HardwareError: if a number is not a positive whole number.
    """

    name: str
    memory_bytes: int
    bf16_flops_per_s: int
    bandwidth_bytes_per_s: int
    pcie_bytes_per_s: int
    pcie_latency_ns: int
    fp8_flops_per_s: int | None = None
    nvlink_bytes_per_s: int | None = None
    title: str = ""
    sources: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _positive(self, f"GPU {self.name}")

    def flops_per_s(self, llm: LlmShape) -> int:
        """Return the dense peak at which ``llm``'s linear operators can run, in FLOP/s.

        FP8 weights run at the BF16 peak where there are no FP8 tensor cores.
        """
        if llm.linear_bytes == 1 and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s
        return self.bf16_flops_per_s


def llm_names() -> list[str]:
    """Return the names of the models whose shapes come with the package."""
    return _names("models")


def gpu_names() -> list[str]:
    """Return the names of the GPUs whose data sheets come with the package."""
    return _names("gpus")


def load_llm(name: str) -> LlmShape:
    """Return the shape of a model by name.

    Raises:
        HardwareError: if there is none of that name.
    """
    return LlmShape(**_read("models", "model", name))


def load_gpu(name: str) -> Gpu:
    """Return the data sheet of a GPU by name.

    Raises:
        HardwareError: if there is none of that name.
    """
    data = _read("gpus", "GPU", name)
    return Gpu(**{**data, "sources": tuple(data["sources"].items())})


def _names(folder: str) -> list[str]:
    data = resources.files("costmodels") / "data" / folder
    return sorted(f.name.removesuffix(".json") for f in data.iterdir() if f.name.endswith(".json"))


def _read(folder: str, kind: str, name: str) -> dict[str, Any]:
    names = _names(folder)
    if name not in names:
        longer = [n for n in names if name and n.startswith(name.lower())]
        near = longer or difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise HardwareError(f"unknown {kind} {name}{meant} (known: {', '.join(names)})")
    text = (resources.files("costmodels") / "data" / folder / f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _positive(value: LlmShape | Gpu, what: str) -> None:
    for field in fields(value):
        number = getattr(value, field.name)
        if field.type in ("int", "int | None") and number is not None and (type(number) is not int or number < 1):
            raise HardwareError(f"{what}: {field.name} is {number!r}; it must be a whole number, at least 1")
