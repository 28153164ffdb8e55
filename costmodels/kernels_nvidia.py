"""Steps composed from NVIDIA's measured vLLM kernels on A100-SXM, H100-SXM, H200 and L40S."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.grids import Curve, FloatArray, Grid
from costmodels.hardware import Gpu, LlmShape, gpu_names, load_gpu
from costmodels.kernels import KernelSource, Steps
from costmodels.nvidia_tables import PACKAGE, SYSTEMS, Products, System, describe, read_all_reduce, read_attention
from costmodels.parallel import prefill_cost
from costmodels.prefill import PipelineCost
from costmodels.roofline import roofline

GRAPH_TOKENS = 512
"""Largest step that vLLM replays as a CUDA graph by default; larger ones launch their all-reduces one by one."""

SMALL_KERNELS = 5
"""Kernels of a layer that are in no table: two norms, rotary embedding, KV write, activation."""

LAUNCH_US = 2.0
"""Assumed for each of them beside its bytes: 1.9 to 2.6 µs with one token in the RTX 4090's public table."""

SAMPLER_US, SAMPLER_BYTES = 25.0, 9
"""Assumed: a step's sampler, and its bytes per sequence and entry of the vocabulary; from the same table."""

RULES = (
    "attention of prefill and decodes of a mixed step is the sum of the two, for no table has them jointly",
    "a chunk after a context takes the time of the whole prompt times its share of the query-key pairs, and at least "
    "that of the chunk alone and of one query over the context",
    "no product is faster than reading its weights, and no decode attention than reading its KV, at the bandwidth of "
    "the data sheet: kernels that were timed in a loop find both in the L2 cache",
    "a product of one token more than a multiple of 16 takes no longer than the next larger one that was measured",
    "norms, rotary embedding, KV write, activation, quantisation and sampler are estimated from their bytes",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class NvidiaKernels(KernelSource):
    """Kernel times as read by :func:`nvidia_kernels`, in µs for one of the ``tp`` GPUs."""

    layer: Curve
    """A layer's four products, by tokens."""
    head: Curve
    """By sequences."""
    prefill: Grid
    """A layer's attention of whole prompts, by their number and the query-key pairs of each."""
    decode: Grid
    """A layer's attention of decodes, by their number and the context of each."""
    most_kv: float
    """The most tokens of context that decodes were measured with, all together."""
    reduce: tuple[Curve, Curve] | None
    """All-reduce by elements, replayed in a graph and launched."""
    touch_us: float
    """What a token costs in the small kernels of all layers."""
    kv_us: float
    """What reading a token's keys and values of a layer costs at least."""
    sample_us: float
    beyond: tuple[str, ...] = ()

    def gpu_ns(self, steps: Steps) -> FloatArray:
        attention = self._prefill(steps) + self._decode(steps)
        small = self.llm.layers * SMALL_KERNELS * LAUNCH_US + self.touch_us * steps.tokens
        layers = self.llm.layers * (self.layer(steps.tokens) + attention)
        once = self.head(steps.sequences) + SAMPLER_US + self.sample_us * steps.sequences
        return np.asarray(layers + small + self._reduce(steps.tokens) + once) * 1000.0

    def _decode(self, steps: Steps) -> FloatArray:
        least = self.kv_us * steps.decode_context
        times = np.maximum(self.decode(steps.n_decode, steps.mean_context), least)
        return np.where(steps.n_decode > 0, times, 0.0)

    def _prefill(self, steps: Steps) -> FloatArray:
        chunk, context, n = steps.chunk, steps.prefill_context, steps.n_prefill
        prompt = chunk + context
        whole = _pairs(prompt)
        share = _pairs(prompt) - _pairs(context)
        times = self.prefill(n, whole) * share / np.maximum(whole, 1)
        times = np.maximum(times, self.prefill(n, _pairs(chunk)))
        one_query = np.maximum(self.decode(n, context), self.kv_us * n * context)
        times = np.where(context > 0, np.maximum(times, one_query), times)
        return np.where(n > 0, times, 0.0)

    def _reduce(self, tokens: NDArray[Any]) -> FloatArray:
        if self.reduce is None:
            return np.zeros(len(tokens))
        graph, eager = (curve(tokens * self.llm.hidden) for curve in self.reduce)
        return np.asarray(2 * self.llm.layers * np.where(tokens <= GRAPH_TOKENS, graph, np.maximum(graph, eager)))

    def measured(self, steps: Steps) -> list[tuple[str, NDArray[Any], float]]:
        longest = (np.sqrt(8 * self.prefill.axes[1][-1] + 1) - 1) / 2
        return [
            ("tokens per step", steps.tokens, self.layer.most),
            ("sequences", steps.sequences, self.head.most),
            ("prompt with its context", steps.chunk + steps.prefill_context, round(float(longest))),
            ("prefills", steps.n_prefill, float(self.prefill.axes[0][-1])),
            ("decodes", steps.n_decode, float(self.decode.axes[0][-1])),
            ("decode context", steps.mean_context, float(self.decode.axes[1][-1])),
            ("context of all decodes", steps.decode_context, self.most_kv),
        ]

    def outside(self, features: NDArray[Any] | Steps) -> str | None:
        says = super().outside(features)
        if not self.beyond:
            return says
        every = f"every step has {' and '.join(self.beyond)}, where times grow with the work"
        return f"{says}; {every}" if says else every


def _pairs(tokens: FloatArray) -> FloatArray:
    return np.asarray(tokens * (tokens + 1) / 2)


def nvidia_kernels(llm: LlmShape, gpu: str, tp: int = 1, host_ns: int = 0) -> NvidiaKernels:
    """Return the kernels of ``llm`` on ``tp`` GPUs, from the newest vLLM version that was measured.

    Raises:
        KernelError: if the GPU, the data type or that number of GPUs was not measured, or the package is missing.
        CostModelError: if ``tp`` does not divide the heads.
    """
    system = System(gpu)
    spec = system.specification()
    bandwidth = float(spec["gpu"]["mem_bw"])
    small = prefill_cost(llm, _data_sheet(gpu, spec), tp)
    assert not isinstance(small, PipelineCost)
    gemm, context, generation = (
        system.newest(kind, name)
        for kind, name in (
            ("gemm", "gemm"),
            ("attention", "context_attention"),
            ("attention", "generation_attention"),
        )
    )
    reduces = [system.newest("comm", "custom_allreduce")] if tp > 1 else []
    bf16 = Products.read(gemm, gpu, "bfloat16", bandwidth)
    linear = bf16 if llm.linear_bytes == 2 else Products.read(gemm, gpu, "fp8", bandwidth)
    queries = llm.heads * llm.head_dim // tp
    weights = (
        (llm.qkv // tp, llm.hidden),
        (llm.hidden, queries),
        (2 * llm.intermediate // tp, llm.hidden),
        (llm.hidden, llm.intermediate // tp),
    )
    products = [linear.curve(n, k, llm.linear_bytes) for n, k in weights]
    head = (llm.vocab // tp, llm.hidden)
    heads, kv_heads = llm.heads // tp, llm.kv_heads // tp
    prompts = read_attention(context, "isl", heads, kv_heads, llm.head_dim)
    decodes = read_attention(generation, "step", heads, kv_heads, llm.head_dim)
    held = np.where(np.isnan(decodes.time), 0.0, np.outer(decodes.batches, decodes.quantity + 1))
    notes = [
        f"{what} of {heads} heads on {kv_heads} KV heads is that of {table.heads[0]} on {table.heads[1]}"
        for what, table in (("prefill attention", prompts), ("decode attention", decodes))
        if table.heads != (heads, kv_heads)
    ]
    beyond = [b for b in (*(linear.outside(n, k) for n, k in weights), bf16.outside(*head)) if b]
    return NvidiaKernels(
        device=gpu,
        llm=llm,
        tp=tp,
        engine_version=gemm.parent.name,
        host_ns=host_ns,
        about={
            "source": f"NVIDIA's measured vLLM kernels in {PACKAGE} {system.version}",
            "files": [describe(path) for path in (gemm, context, generation, *reduces)],
            "rules": list(RULES),
            "notes": notes,
        },
        layer=Curve(products[0].x, np.sum([p.time for p in products], axis=0)),
        head=bf16.curve(*head, 2),
        prefill=Grid((prompts.batches, _pairs(prompts.quantity)), prompts.time),
        decode=Grid((decodes.batches, decodes.quantity), decodes.time),
        most_kv=float(held.max()),
        reduce=(read_all_reduce(reduces[0], tp, "vllm_graph"), read_all_reduce(reduces[0], tp, "vllm_eager"))
        if reduces
        else None,
        touch_us=small.touch_fs / 1e9,
        kv_us=llm.kv_bytes_per_token_and_layer / tp / bandwidth * 1e6,
        sample_us=llm.vocab * SAMPLER_BYTES / bandwidth * 1e6,
        beyond=tuple(beyond),
    )


def _data_sheet(gpu: str, spec: dict[str, Any]) -> Gpu:
    if gpu in gpu_names():
        return load_gpu(gpu)
    sheet, node = spec["gpu"], spec["node"]
    nvlink = int(node["intra_node_bw"]) if node["intra_node_bw"] > node["pcie_bw"] else None
    return Gpu(
        name=gpu,
        memory_bytes=int(sheet["mem_capacity"]),
        bf16_flops_per_s=int(sheet["bfloat16_tc_flops"]),
        bandwidth_bytes_per_s=int(sheet["mem_bw"]),
        pcie_bytes_per_s=int(node["pcie_bw"]),
        pcie_latency_ns=round(node["p2p_latency"] * 1e9),
        fp8_flops_per_s=int(sheet["fp8_tc_flops"]) if "fp8_tc_flops" in sheet else None,
        nvlink_bytes_per_s=nvlink,
    )


def kernel_source(llm: LlmShape, gpu: str, tp: int = 1, host_ns: int = 0) -> KernelSource:
    """Return the measured kernels of ``llm`` on a GPU that was measured, and a roofline, an estimate, on any other.

    Raises:
        CostModelError: if the GPU is unknown, or see :func:`nvidia_kernels` and :func:`costmodels.roofline.roofline`.
    """
    if gpu in SYSTEMS:
        return nvidia_kernels(llm, gpu, tp, host_ns)
    return roofline(llm, load_gpu(gpu), tp, host_ns=host_ns)
