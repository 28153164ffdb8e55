"""The cost of a language model on a GPU or on several, from their data sheets."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

from costmodels.base import CostModelError
from costmodels.hardware import Gpu, LlmShape, load_gpu, load_llm
from costmodels.prefill import PipelineCost, PrefillCost

PREFIX = "prefill:"

LINKS = ("pcie", "nvlink")

NUMBERS = ("tp", "pp", "chunk")

PARAMETERS = ("llm", "gpu", "link", *NUMBERS)

CALIBRATION_CHUNK = 512
"""The chunk at which ``chunk_attention`` was calibrated (PrefillOnly §2.5)."""


@dataclass(frozen=True)
class Efficiency:
    """What share of the data sheets' numbers is reached; each with its source in ``data/prefill/efficiency.json``.

    ``gemm`` is the share of the dense BF16 peak that large matrix products reach on a GPU, ``fp8`` and
    ``weight_only`` what FP8 products, with and without FP8 tensor cores, keep of it, ``attention`` what attention
    keeps of it, ``memory`` the share of the memory bandwidth. ``chunk_attention`` is the extra time of attention in
    a full chunk of 512 tokens, as a share; the only number that is calibrated on the PrefillOnly paper.
    """

    gemm: Mapping[str, Fraction]
    gemm_elsewhere: Fraction
    fp8: Fraction
    weight_only: Fraction
    attention: Fraction
    memory: Fraction
    nvlink: Fraction
    pcie: Fraction
    nvlink_latency_ns: int
    pcie_latency_ns: int
    host_ns: int
    chunk_attention: Fraction

    def bf16(self, gpu: Gpu) -> Fraction:
        """Return the FLOP/s of large BF16 products."""
        return gpu.bf16_flops_per_s * self.gemm.get(gpu.name, self.gemm_elsewhere)

    def linear(self, gpu: Gpu, llm: LlmShape) -> Fraction:
        """Return the FLOP/s of the layers' linear operators."""
        rate = gpu.flops_per_s(llm) * self.gemm.get(gpu.name, self.gemm_elsewhere)
        if llm.linear_bytes > 1:
            return rate
        return rate * (self.fp8 if gpu.fp8_flops_per_s is not None else self.weight_only)


@cache
def shipped_efficiency() -> Efficiency:
    """Return the efficiencies that come with the package."""
    text = (resources.files("costmodels") / "data" / "prefill" / "efficiency.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    del data["sources"]
    gemm = {name: Fraction(share) for name, share in data.pop("gemm").items()}
    shares: dict[str, Any] = {k: Fraction(v) if isinstance(v, str) else v for k, v in data.items()}
    return Efficiency(gemm, **shares)


def pcie_bytes_per_s(gpu: Gpu) -> int:
    """Return what transfers from CPU memory reach: the data sheet's bandwidth times the share that is reached."""
    return int(gpu.pcie_bytes_per_s * shipped_efficiency().pcie)


def prefill_cost(
    llm: LlmShape,
    gpu: Gpu,
    tp: int = 1,
    pp: int = 1,
    link: str | None = None,
    chunk: int = 0,
    efficiency: Efficiency | None = None,
) -> PrefillCost | PipelineCost:
    """Return the step time of ``llm`` on ``tp * pp`` GPUs.

    Tensor parallelism divides compute, weights and KV by ``tp`` and adds two ring all-reduces a layer; what works on
    whole activations (norms, the quantisation before QKV and MLP) is repeated on every GPU. A pipeline has ``pp``
    stages of equal numbers of layers; each hands two tensors of activations on, hidden state and residual. Link and
    host costs are not overlapped with compute.

    Args:
        llm: The model's shape.
        gpu: The data sheet of one GPU.
        tp: Tensor parallel GPUs per stage.
        pp: Pipeline stages.
        link: ``pcie`` or ``nvlink`` between the GPUs; by default NVLink where the GPU has it.
        chunk: The chunk that an engine splits prompts into, in tokens, which makes attention dearer; 0 for engines
            that prefill whole or hybrid.
        efficiency: By default :func:`shipped_efficiency`.

    Raises:
        CostModelError: if ``tp`` does not divide the heads, there are more stages than layers, or there is no NVLink.
    """
    parameters = {"tp": tp, "pp": pp, "chunk": chunk}
    for key, value in parameters.items():
        least = int(key != "chunk")
        if type(value) is not int or value < least:
            raise CostModelError(f"{key} is {value!r}; it must be a whole number, at least {least}")
    if llm.heads % tp or llm.kv_heads % tp:
        raise CostModelError(
            f"tp={tp} does not divide the {llm.heads} heads and {llm.kv_heads} KV heads of {llm.name} evenly"
        )
    if pp > llm.layers:
        raise CostModelError(f"pp={pp} is more than the {llm.layers} layers of {llm.name}")
    link = _link(gpu, link)
    name = f"{PREFIX}llm={llm.name},gpu={gpu.name}"
    name += f",link={link}" * (tp * pp > 1)
    name += "".join(f",{key}={value}" for key, value in parameters.items() if value > int(key != "chunk"))
    build = _Builder(llm, gpu, tp, link, chunk, efficiency or shipped_efficiency())
    bounds = [llm.layers * k // pp for k in range(pp + 1)]
    stages = [
        build.stage(name if pp == 1 else f"{name} stage {k}", bounds[k + 1] - bounds[k], last=k == pp - 1)
        for k in range(pp)
    ]
    return stages[0] if pp == 1 else PipelineCost(name, tuple(stages))


def named_prefill_cost(text: str) -> PrefillCost | PipelineCost:
    """Read ``"prefill:llm=llama-3.1-8b,gpu=l4,tp=2,link=pcie"``; the parameters are :func:`prefill_cost`'s.

    Raises:
        CostModelError: if a parameter is missing, unknown, given twice or not valid.
    """
    given: dict[str, str] = {}
    for part in text.removeprefix(PREFIX).split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in PARAMETERS:
            near = difflib.get_close_matches(key, PARAMETERS, 1, 0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            what = "unknown parameter" if equals else "expected name=value, not"
            raise CostModelError(f"cost model {text}: {what} {part!r}{meant} (parameters: {', '.join(PARAMETERS)})")
        if key in given:
            raise CostModelError(f"cost model {text}: {key} is given twice")
        given[key] = value
    for key in ("llm", "gpu"):
        if key not in given:
            raise CostModelError(f"cost model {text}: {key} is missing, as in {PREFIX}llm=llama-3.1-8b,gpu=l4")
    try:
        numbers: dict[str, Any] = {key: _number(key, given[key]) for key in NUMBERS if key in given}
        return prefill_cost(load_llm(given["llm"]), load_gpu(given["gpu"]), link=given.get("link"), **numbers)
    except CostModelError as e:
        raise CostModelError(f"cost model {text}: {e}") from None


@dataclass(frozen=True)
class _Builder:
    llm: LlmShape
    gpu: Gpu
    tp: int
    link: str
    chunk: int
    share: Efficiency

    def stage(self, name: str, layers: int, last: bool) -> PrefillCost:
        """Return the cost of ``layers`` layers, and of the head on the last stage."""
        llm, tp, share = self.llm, self.tp, self.share
        bandwidth = self.gpu.bandwidth_bytes_per_s * share.memory
        bf16 = share.bf16(self.gpu)
        parameters = Fraction(layers * llm.linear_parameters_per_layer, tp)
        head = Fraction(llm.vocab * llm.hidden * last, tp)
        pair_s = Fraction(4 * layers * llm.heads * llm.head_dim, tp) / (bf16 * share.attention)
        dearer = 1 + share.chunk_attention * CALIBRATION_CHUNK / self.chunk if self.chunk else 1
        hop_s, hop_step_s = self._hops(layers, last)
        return PrefillCost(
            name=name,
            token_fs=_fs(2 * parameters / share.linear(self.gpu, llm)),
            weights_fs=_fs(parameters * llm.linear_bytes / bandwidth),
            touch_fs=_fs(layers * self._touched_bytes() / bandwidth),
            pair_fs=_fs(pair_s),
            kv_fs=_fs(Fraction(layers * llm.kv_bytes_per_token_and_layer, tp) / bandwidth),
            head_fs=_fs(2 * head / bf16),
            head_weights_fs=_fs(2 * head / bandwidth),
            hop_fs=_fs(hop_s),
            hop_step_fs=_fs(hop_step_s),
            host_fs=share.host_ns * 10**6,
            chunk=self.chunk,
            chunk_pair_fs=_fs(pair_s * dearer) if self.chunk else 0,
            source="data sheets in costmodels/data/gpus, shapes in data/models, efficiencies in data/prefill",
        )

    def _touched_bytes(self) -> Fraction:
        """Bytes per token and layer that the operators between the products read and write."""
        llm, a = self.llm, self.llm.activation_bytes
        queries, keys = llm.heads * llm.head_dim, llm.kv_heads * llm.head_dim
        norms = 2 * 4 * llm.hidden * a
        activation = 3 * llm.intermediate * a
        rotary = 2 * (queries + keys) * a
        cache_write = 2 * keys * (a + llm.kv_bytes)
        whole, divided = norms, activation + rotary + cache_write
        if llm.linear_bytes == 1 and self.gpu.fp8_flops_per_s is not None:
            # Inputs of all four products are quantised to one byte; those of QKV and MLP are whole on every GPU.
            whole += 2 * llm.hidden * (a + 1)
            divided += (queries + llm.intermediate) * (a + 1)
        return whole + Fraction(divided, self.tp)

    def _hops(self, layers: int, last: bool) -> tuple[Fraction, Fraction]:
        """Return the seconds on the link per token and per step."""
        nvlink = self.link == "nvlink"
        nominal = self.gpu.nvlink_bytes_per_s if nvlink else self.gpu.pcie_bytes_per_s
        rate = (nominal or 0) * (self.share.nvlink if nvlink else self.share.pcie)
        latency = Fraction(self.share.nvlink_latency_ns if nvlink else self.share.pcie_latency_ns, 10**9)
        tensor = self.llm.hidden * self.llm.activation_bytes
        reduces = 2 * layers if self.tp > 1 else 0
        hand_overs = int(not last)
        sent = reduces * Fraction(2 * (self.tp - 1), self.tp) * tensor + hand_overs * 2 * tensor
        return sent / rate, (reduces + hand_overs) * latency


def _link(gpu: Gpu, link: str | None) -> str:
    if link is None:
        return "nvlink" if gpu.nvlink_bytes_per_s else "pcie"
    if link not in LINKS:
        near = difflib.get_close_matches(link, LINKS, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise CostModelError(f"unknown link {link!r}{meant} (links: {', '.join(LINKS)})")
    if link == "nvlink" and not gpu.nvlink_bytes_per_s:
        raise CostModelError(f"GPU {gpu.name} has no NVLink; use link=pcie")
    return link


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise CostModelError(f"{key} is {text!r}; it must be a whole number")
    return int(text)


def _fs(seconds: Fraction) -> int:
    """Return femtoseconds, rounded up."""
    return -(-seconds.numerator * 10**15 // seconds.denominator)
