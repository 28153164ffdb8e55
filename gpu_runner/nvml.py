"""Energy of NVIDIA GPUs by their own counters, where the driver gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class EnergyMeter(Protocol):
    """A counter of the energy that all devices of an engine have used."""

    def read_mj(self) -> int:
        """Return millijoules since some moment; it only rises."""


class NvmlMeter:
    """Sums the energy counters of GPUs (Volta and later); each moves every few tens of milliseconds.

    Args:
        nvml: the module ``pynvml``, initialised.
        handles: of the GPUs.
    """

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = tuple(handles)

    def read_mj(self) -> int:
        """Return the sum of the GPUs' counters in millijoules."""
        return sum(int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(h)) for h in self._handles)


def open_meter(uuids: Sequence[str]) -> tuple[EnergyMeter | None, str]:
    """Return a meter of GPUs, or ``None``, and a sentence that says how energy is measured or why it is not.

    Args:
        uuids: of the GPUs, as NVML spells them, ``GPU-...``; none on a CPU.
    """
    if not uuids:
        return None, "no energy: the engine runs on no NVIDIA GPU"
    try:
        import pynvml
    except ImportError:
        return None, "no energy: nvidia-ml-py is not installed; pip install 'prefillsim[gpu]' brings it"
    try:
        pynvml.nvmlInit()
        meter = NvmlMeter(pynvml, [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
        meter.read_mj()
    except pynvml.NVMLError as e:
        return None, f"no energy: NVML says {e}"
    return meter, f"energy: mean power by the energy counters of {len(uuids)} GPUs, times the step's duration"
