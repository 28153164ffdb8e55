import pytest

torch = pytest.importorskip("torch", reason="hybrid prefilling needs PyTorch: pip install 'prefillsim[gpu]'")
pytest.importorskip("transformers", reason="hybrid prefilling needs transformers: pip install 'prefillsim[gpu]'")

torch.set_num_threads(1)
