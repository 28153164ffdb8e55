"""The cost models that are shipped: composed from kernel tables, fitted, and written with their cards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModelError
from costmodels.hardware import LlmShape
from costmodels.io import save_cost_model
from costmodels.kernels import KernelSource, compose_profile, step_grid
from costmodels.profile import Profile
from costmodels.sources import load_kernel_source
from experiments.calibration import Calibration, calibrate
from policies.registry import nearest

COMMAND = "prefillsim costmodel artefacts"

DECODES = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024)
CONTEXTS = (64, 256, 1024, 2048, 4096, 8192, 16384)
CHUNKS = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BEFORE = (0, 512, 2048, 8192)

SEVERAL = (2, 4, 8, 16, 32, 64, 128)
SEVERAL_CHUNKS = (16, 64, 256, 1024, 2048)
SEVERAL_BEFORE = (0, 2048)
SEVERAL_BESIDE = ((0, 0), (16, 512), (64, 1024), (192, 2048))
"""Decodes and their contexts beside several prefills."""

MOST_TOKENS = 8192
"""Of a step, in prefills."""

USABLE = 0.9
"""Share of a GPU's memory that vLLM uses by default."""


@dataclass(frozen=True)
class Setting:
    """A model on a number of GPUs that it fits."""

    name: str
    source: str
    """See :func:`costmodels.sources.load_kernel_source`."""
    memory_gb: int
    """Of one GPU."""
    caveats: tuple[str, ...] = ()


HOST = "no host time is added: with asynchronous scheduling vLLM prepares a step while the GPU works; else add yours"
SHAPE_70B = "Llama-3.1-70B has the shape of Llama-3.3-70B"
GRAPHS = "small kernels, sampler and norms are estimated from their bytes, not measured"
PCIE_4 = "most of a step is all-reduces: on four L40S over PCIe they were measured at 2.5 GB/s, on two at 19"
ROOFLINE = "estimated: from the data sheet alone, nobody measured this GPU's kernels here"
MARGINS = "margins hold for the composed steps they were calibrated on, not for an engine that was not measured"


def _measured(
    name: str, gpu: str, memory_gb: int, llm: str, tp: int = 1, dtype: str = "bf16", caveats: tuple[str, ...] = ()
) -> Setting:
    source = f"nvidia:gpu={gpu},llm={llm},tp={tp},dtype={dtype}"
    extra = (SHAPE_70B, *caveats) if "70b" in llm else caveats
    return Setting(name, source, memory_gb, (HOST, GRAPHS, MARGINS, *extra))


def _estimated(name: str, memory_gb: int, llm: str, tp: int = 1, dtype: str = "bf16") -> Setting:
    extra = (SHAPE_70B,) if "70b" in llm else ()
    source = f"roofline:gpu=l4,llm={llm},tp={tp},dtype={dtype}"
    return Setting(name, source, memory_gb, (ROOFLINE, HOST, MARGINS, *extra))


LLAMA_8B, QWEN_32B, LLAMA_70B = "llama-3.1-8b", "qwen-32b-fp8", "llama-3.3-70b-fp8"

SETTINGS = {
    s.name: s
    for s in (
        _measured("a100-llama3.1-8b", "a100-80", 80, LLAMA_8B),
        _measured("a100-qwen-32b-tp2", "a100-80", 80, QWEN_32B, 2),
        _measured("a100-llama3.1-70b-tp4", "a100-80", 80, LLAMA_70B, 4),
        _measured("h100-llama3.1-8b", "h100-sxm", 80, LLAMA_8B),
        _measured("h100-qwen-32b-fp8", "h100-sxm", 80, QWEN_32B, dtype="fp8"),
        _measured("h100-llama3.1-70b-fp8-tp2", "h100-sxm", 80, LLAMA_70B, 2, "fp8"),
        _measured("h100-llama3.1-70b-tp8", "h100-sxm", 80, LLAMA_70B, 8),
        _measured("h200-llama3.1-8b", "h200", 141, LLAMA_8B),
        _measured("h200-qwen-32b-fp8", "h200", 141, QWEN_32B, dtype="fp8"),
        _measured("h200-llama3.1-70b-fp8", "h200", 141, LLAMA_70B, dtype="fp8"),
        _measured("l40s-llama3.1-8b", "l40s", 48, LLAMA_8B),
        _measured("l40s-qwen-32b-fp8-tp2", "l40s", 48, QWEN_32B, 2, "fp8"),
        _measured("l40s-llama3.1-70b-fp8-tp4", "l40s", 48, LLAMA_70B, 4, "fp8", (PCIE_4,)),
        _estimated("l4-llama3.1-8b-estimated", 24, LLAMA_8B),
        _estimated("l4-qwen-32b-fp8-tp2-estimated", 24, QWEN_32B, 2, "fp8"),
        _estimated("l4-llama3.1-70b-fp8-tp4-estimated", 24, LLAMA_70B, 4, "fp8"),
    )
}


def kv_tokens(llm: LlmShape, tp: int, memory_gb: int) -> int:
    """Return how many tokens' KV fit beside the weights; activations take some of it."""
    return int((USABLE * tp * memory_gb * 1e9 - llm.weight_bytes) / llm.kv_bytes_per_token)


def artefact_steps(most_kv_tokens: int) -> NDArray[np.int64]:
    """Return the shapes of steps that a shipped model is fitted to, shape (steps, 6)."""
    single = step_grid(DECODES, CONTEXTS, CHUNKS, BEFORE, most_kv_tokens)
    several = [
        (n, n * context, context, m, m * c, m * (c * before + c * (c + 1) // 2))
        for n, context in SEVERAL_BESIDE
        for m in SEVERAL
        for c in SEVERAL_CHUNKS
        for before in SEVERAL_BEFORE
        if m * c <= MOST_TOKENS and n * context + m * (c + before) <= most_kv_tokens
    ]
    held = single[:, 1] + single[:, 4] <= most_kv_tokens
    return np.concatenate([single[held], np.array(several, dtype=np.int64).reshape(-1, 6)])


def compose(source: KernelSource, memory_gb: int) -> Profile:
    """Return the profile of the steps that fit the GPUs' memory.

    Raises:
        CostModelError: if the weights leave no memory.
    """
    most = kv_tokens(source.llm, source.tp, memory_gb)
    if most < max(CHUNKS):
        raise CostModelError(
            f"{source.llm.name} leaves KV memory for {max(most, 0):,} tokens on {source.tp} GPUs of {memory_gb} GB"
        )
    return compose_profile(source, artefact_steps(most))


def make(setting: Setting) -> tuple[Calibration, dict[str, object]]:
    """Compose and fit one setting; return the calibration, and the card that says all of it.

    Raises:
        CostModelError: if the extra [kernels] is not installed, or the source does not support the setting.
    """
    made = calibrate(compose(load_kernel_source(setting.source), setting.memory_gb), setting.name)
    card = made.card(f"{COMMAND} {setting.name}")
    card["kernels"] = setting.source
    card["caveats"] = [*setting.caveats, *card["caveats"]]
    return made, card


def find(names: Iterable[str]) -> list[Setting]:
    """Return the settings of these names, all of them for none.

    Raises:
        CostModelError: if one is not known.
    """
    chosen = list(names) or list(SETTINGS)
    for name in chosen:
        if name not in SETTINGS:
            raise CostModelError(f"no artefact is named {name}{nearest(name, SETTINGS)} ({', '.join(SETTINGS)})")
    return [SETTINGS[name] for name in chosen]


def write(setting: Setting, folder: Path) -> tuple[Path, Calibration]:
    """Make one setting and write its file.

    Raises:
        CostModelError: see :func:`make`.
        OSError: if the file cannot be written.
    """
    made, card = make(setting)
    path = folder / f"{setting.name}.json"
    save_cost_model(made.model, path, card)
    return path, made
