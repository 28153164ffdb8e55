"""Models for the hybrid engine: from a folder, from the hub, or from a shape with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from costmodels.hardware import llm_names, load_llm
from gpu_runner.hybrid.attention import NAME
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.options import HybridOptions

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_of(options: HybridOptions) -> str:
    """Return where the model runs.

    Raises:
        HybridError: if there is no such device.
    """
    if options.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(options.device)
    except RuntimeError:
        wanted = torch.device("meta")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.type not in ("cpu", "cuda") or (wanted.type == "cuda" and (wanted.index or 0) >= gpus):
        raise HybridError(f"there is no device {options.device}; give cpu, or cuda where there is a GPU")
    return options.device


def load_model(options: HybridOptions, device: str) -> Any:
    """Return a causal language model in evaluation mode whose attention is that of hybrid prefilling.

    Raises:
        HybridError: if it cannot be read.
    """
    folder = Path(options.model)
    if not folder.is_dir() and options.load_format == "dummy" and options.model in llm_names():
        return _of_shape(options, device)
    if not folder.is_dir() and options.model.startswith((".", "/", "~")):
        raise HybridError(f"there is no model folder {options.model}")
    try:
        config = AutoConfig.from_pretrained(options.model)
        dtype = TYPES.get(options.dtype) or getattr(config, "dtype", None) or torch.float32
        if options.load_format == "dummy":
            model = _random(config, dtype, device, options.seed)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                options.model, config=config, dtype=dtype, attn_implementation=NAME
            ).to(device)
    except (OSError, ValueError, KeyError) as e:
        if isinstance(e, HybridError):
            raise
        raise HybridError(f"the model {options.model} cannot be loaded: {str(e).strip().partition(chr(10))[0]}") from e
    except torch.OutOfMemoryError as e:
        raise HybridError(f"the weights of {options.model} do not fit the memory of {device}") from e
    return model.eval().requires_grad_(False)


def tokenizer_of(options: HybridOptions) -> Any:
    """Return a model's tokenizer, ``None`` where it has none."""
    if not Path(options.model).is_dir() and options.load_format == "dummy":
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(options.model)
    except (OSError, ValueError, KeyError):
        return None


def _random(config: Any, dtype: torch.dtype, device: str, seed: int) -> Any:
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    finally:
        torch.random.set_rng_state(state)


def _of_shape(options: HybridOptions, device: str) -> Any:
    shape = load_llm(options.model)
    family = "qwen2" if shape.qkv_bias else "llama"
    dtype = TYPES.get(options.dtype, torch.bfloat16)
    return build_model(family, shape, dtype=dtype, device=device, seed=options.seed)
