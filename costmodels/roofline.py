"""Steps from data sheets, for GPUs whose kernels nobody has measured; marked as estimated wherever they appear."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.grids import FloatArray
from costmodels.hardware import Gpu, LlmShape
from costmodels.kernels import KernelSource, Steps
from costmodels.parallel import prefill_cost
from costmodels.prefill import PipelineCost, PrefillCost

LAUNCHES_US = 20.0
"""Assumed for each layer beside its work: five small kernels of 2 µs, and the 10 µs that NVIDIA's tables have for the
smallest attention on A100, H100 and H200."""


def estimated_name(gpu: Gpu) -> str:
    """Return the name under which a GPU's estimates appear."""
    return f"{gpu.name} (estimated)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Roofline(KernelSource):
    """FLOPs, bytes and efficiencies of :class:`costmodels.prefill.PrefillCost`.

    Without its host's time, and with what launching a layer's kernels takes at least.
    """

    cost: PrefillCost

    def gpu_ns(self, steps: Steps) -> FloatArray:
        rows = zip(
            steps.n_decode.tolist(),
            steps.decode_context.tolist(),
            steps.decode_context_max.tolist(),
            steps.n_prefill.tolist(),
            steps.prefill_tokens.tolist(),
            steps.prefill_pairs.tolist(),
            strict=True,
        )
        work = np.array([self.cost.step_ns(*row) for row in rows], dtype=np.float64)
        return np.asarray(work + 1000.0 * LAUNCHES_US * self.llm.layers)


def roofline(llm: LlmShape, gpu: Gpu, tp: int = 1, link: str | None = None, host_ns: int = 0) -> Roofline:
    """Return the estimate for ``llm`` on ``tp`` GPUs, whose parameters are :func:`costmodels.parallel.prefill_cost`'s.

    Raises:
        CostModelError: if ``tp`` does not divide the heads, or there is no such link.
    """
    cost = prefill_cost(llm, gpu, tp, link=link)
    assert not isinstance(cost, PipelineCost)
    return Roofline(
        device=estimated_name(gpu),
        llm=llm,
        tp=tp,
        engine="roofline",
        engine_version="1",
        host_ns=host_ns,
        estimated=True,
        about={"source": cost.source, "model": cost.name},
        cost=replace(cost, host_fs=0),
    )
