"""Joules of steps, and of requests: measured, or idle power plus utilisation times the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModelError
from costmodels.hardware import Gpu, LlmShape

if TYPE_CHECKING:
    from costmodels.profile import Profile

FloatArray = NDArray[np.float64]

Steps = Mapping[str, NDArray[Any]]
"""Columns of steps: the six features and ``duration_ns``, each of shape (steps,)."""

S_PER_NS = 1e-9


class EnergyError(CostModelError):
    """An energy model that cannot be made; the message says what is wrong and what would be right."""


@dataclass(frozen=True)
class Watts:
    """Power of one GPU: idle with a model loaded, and at most.

    Raises:
        EnergyError: unless 0 <= idle <= peak and peak is positive.
    """

    idle: float
    peak: float

    def __post_init__(self) -> None:
        if not (0 <= self.idle <= self.peak < np.inf and self.peak > 0):
            raise EnergyError(f"power of {self.idle} W idle and {self.peak} W at most: idle must be from 0 to the most")


POWER = {
    "a100-40": Watts(45, 250),
    "a100-80": Watts(60, 400),
    "h100-pcie": Watts(60, 350),
    "h100-nvlink": Watts(60, 350),
    "h100-sxm": Watts(90, 700),
    "h200": Watts(90, 700),
    "l4": Watts(20, 72),
    "l40s": Watts(45, 350),
    "rtx4090": Watts(30, 450),
}
"""Peak: NVIDIA's data sheets. Idle: assumed, with a context and memory allocated, some 10 to 30 % of the peak."""


@dataclass(frozen=True)
class EnergyModel(ABC):
    """Joules of steps on all GPUs of a replica together."""

    idle_w: float
    """Power of all its GPUs between steps, in watts."""

    @abstractmethod
    def step_mj(self, steps: Steps) -> FloatArray:
        """Return the energy of each step in millijoules, shape (steps,)."""


@dataclass(frozen=True)
class PowerEnergy(EnergyModel):
    """Idle power, plus utilisation times the rest of the peak, for as long as the step takes.

    Utilisation is the larger share of the data sheet's FLOP/s and bytes/s that the step's work needs in its time, 1
    at most. An estimate: clocks that drop under load, and what the host draws, are not in it.
    """

    peak_w: float
    llm: LlmShape
    flops_per_s: float
    """Of all GPUs together."""
    bytes_per_s: float

    def utilisation(self, steps: Steps) -> FloatArray:
        """Return the utilisation of each step, from 0 to 1, shape (steps,)."""
        llm = self.llm
        n, context = np.asarray(steps["n_decode"], dtype=np.float64), steps["decode_context"]
        tokens, sequences = n + steps["prefill_tokens"], n + steps["n_prefill"]
        pair_flops = 4 * llm.layers * llm.heads * llm.head_dim
        flops = 2.0 * llm.linear_parameters * tokens + 2.0 * llm.vocab * llm.hidden * sequences
        flops += pair_flops * (np.asarray(steps["prefill_pairs"], dtype=np.float64) + context)
        read = llm.weight_bytes + llm.kv_bytes_per_token * (n + context)
        seconds = np.asarray(steps["duration_ns"]) * S_PER_NS
        share = np.maximum(flops / self.flops_per_s, read / self.bytes_per_s) / seconds
        return np.asarray(np.minimum(share, 1.0))

    def step_mj(self, steps: Steps) -> FloatArray:
        watts = self.idle_w + self.utilisation(steps) * (self.peak_w - self.idle_w)
        return np.asarray(1e3 * watts * np.asarray(steps["duration_ns"]) * S_PER_NS)


def power_energy(llm: LlmShape, gpu: Gpu, gpus: int = 1, watts: Watts | None = None) -> PowerEnergy:
    """Return the estimate for ``llm`` on ``gpus`` GPUs of one replica.

    Raises:
        EnergyError: if there is no GPU, or its power is neither given nor known.
    """
    if gpus < 1:
        raise EnergyError(f"a replica has at least 1 GPU, not {gpus}")
    if watts is None and gpu.name not in POWER:
        raise EnergyError(f"the power of GPU {gpu.name} is not known; give its watts (known: {', '.join(POWER)})")
    power = watts or POWER[gpu.name]
    return PowerEnergy(
        idle_w=gpus * power.idle,
        peak_w=gpus * power.peak,
        llm=llm,
        flops_per_s=float(gpus * gpu.flops_per_s(llm)),
        bytes_per_s=float(gpus * gpu.bandwidth_bytes_per_s),
    )


@dataclass(frozen=True)
class MeasuredEnergy(EnergyModel):
    """Energy that grows with time and work as it did where it was measured, see :func:`measured_energy`."""

    coefficients: tuple[float, ...]
    """Millijoules of a step, a millisecond, a token, a 1,000,000 prefill pairs and 1,000 tokens of decode context."""

    def step_mj(self, steps: Steps) -> FloatArray:
        return np.asarray(_terms(steps) @ np.array(self.coefficients))


def measured_energy(profile: Profile, idle_w: float) -> MeasuredEnergy:
    """Fit the energies of a profile table with coefficients that are not negative; outliers are left out.

    Raises:
        EnergyError: if the table has no energies.
    """
    # Simulations need neither, and their processes start twice as fast without.
    from scipy.optimize import nnls

    if "energy_mj" not in profile.frame:
        raise EnergyError(f"{profile.name} has no column energy_mj; measure energy, or use idle and peak power")
    rows = profile.frame[~profile.outlier]
    if not (rows["energy_mj"] > 0).all():
        raise EnergyError(f"{profile.name}: energy_mj must be positive in every row")
    energy = rows["energy_mj"].to_numpy(dtype=np.float64)
    columns = {c: rows[c].to_numpy() for c in rows.columns}
    fitted, _ = nnls(_terms(columns) / energy[:, None], np.ones(len(energy)))
    return MeasuredEnergy(idle_w=idle_w, coefficients=tuple(float(c) for c in fitted))


def _terms(steps: Steps) -> FloatArray:
    duration = np.asarray(steps["duration_ns"], dtype=np.float64)
    tokens = np.asarray(steps["n_decode"], dtype=np.float64) + steps["prefill_tokens"]
    pairs, context = steps["prefill_pairs"] / 1e6, steps["decode_context"] / 1e3
    return np.stack([np.ones(len(duration)), duration / 1e6, tokens, pairs, context], axis=1)


def energy_summary(
    steps: Steps, model: EnergyModel, span_ns: int, finished: int, met: int, replicas: int = 1
) -> dict[str, float | None]:
    """Return the energy of a run: of its steps, and idle between them.

    ``energy_j``; ``power_mean_w`` over the span; ``energy_per_request_j`` over finished requests; and
    ``energy_per_met_request_j`` over those that met every objective (joules per valid request, SLOWeave Table 2), so
    that goodput times it is the mean power. None where nothing was measured.

    Args:
        steps: All steps of all replicas.
        model: Energy of one replica.
        span_ns: From the first arrival to the last finish.
        finished: Requests that finished.
        met: Requests that met every objective.
        replicas: Number of replicas.
    """
    busy_ns = int(np.sum(steps["duration_ns"]))
    idle_ns = max(replicas * span_ns - busy_ns, 0)
    joules = float(np.sum(model.step_mj(steps))) / 1e3 + model.idle_w * idle_ns * S_PER_NS
    return {
        "energy_j": joules,
        "power_mean_w": joules / (span_ns * S_PER_NS) if span_ns > 0 else None,
        "energy_per_request_j": joules / finished if finished else None,
        "energy_per_met_request_j": joules / met if met else None,
    }
