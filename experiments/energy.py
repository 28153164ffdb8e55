"""What the hardware of an experiment draws."""

from __future__ import annotations

from typing import Any

from costmodels.energy import EnergyModel, power_energy
from costmodels.hardware import gpu_names, llm_names, load_gpu, load_llm
from costmodels.io import load_card
from experiments.config import Config


def energy_of(config: Config) -> EnergyModel | None:
    """Return what a replica draws on ``[hardware]``, else on what its cost model was fitted for.

    ``None`` where neither names a model and a GPU whose power and data sheet are known.

    Raises:
        CostModelError: if ``[hardware]`` names one that is not known.
    """
    hardware = config.hardware
    if hardware.gpu is not None and hardware.llm is not None:
        return power_energy(load_llm(hardware.llm), load_gpu(hardware.gpu), hardware.tp * hardware.pp)
    return _of_card(load_card(config.cost_model))


def _of_card(card: dict[str, Any]) -> EnergyModel | None:
    gpu = str(card.get("device", "")).removesuffix(" (estimated)")
    model, tp = str(card.get("model", "")), card.get("tensor_parallel")
    llm = next((name for name in (model, f"{model}-fp8") if name in llm_names()), None)
    if llm is None or gpu not in gpu_names() or type(tp) is not int or tp < 1:
        return None
    # Kernel tables come with it, and pandas with them.
    from costmodels.sources import with_dtype

    dtype = card.get("dtype")
    return power_energy(with_dtype(load_llm(llm), dtype if dtype in ("bf16", "fp8") else None), load_gpu(gpu), tp)
