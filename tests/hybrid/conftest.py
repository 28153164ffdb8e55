"""Hybrid prefilling runs in PyTorch; without it, nothing here is collected."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    collect_ignore_glob = []
    import torch

    torch.set_num_threads(1)
