from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runner.nvml import open_meter


class NvmlError(Exception):
    pass


def fake(fail: str = "") -> Any:
    """A pynvml whose GPUs have used 1000 and 234 mJ, or one of whose functions fails."""

    def maybe(name: str, value: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name == fail:
                raise NvmlError("Not Supported")
            return value[arguments[0]] if arguments else value

        return call

    handles = {"GPU-a": 0, "GPU-b": 1}
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=maybe("nvmlInit", None),
        nvmlDeviceGetHandleByUUID=maybe("nvmlDeviceGetHandleByUUID", handles),
        nvmlDeviceGetTotalEnergyConsumption=maybe("nvmlDeviceGetTotalEnergyConsumption", {0: 1000, 1: 234}),
    )


def test_the_counters_of_all_gpus_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    meter, says = open_meter(["GPU-a", "GPU-b"])
    assert meter is not None
    assert meter.read_mj() == 1234
    assert "2 GPUs" in says


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"])
def test_what_nvml_refuses_is_said(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake(name))
    assert open_meter(["GPU-a"]) == (None, "no energy: NVML says Not Supported")


def test_without_a_gpu_or_the_package_there_is_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_meter(["GPU-a"]) == (
        None,
        "no energy: nvidia-ml-py is not installed; pip install 'prefillsim[gpu]' brings it",
    )
    assert open_meter([]) == (None, "no energy: the engine runs on no NVIDIA GPU")
