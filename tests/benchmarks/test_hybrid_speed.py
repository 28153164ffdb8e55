"""The price of the graph pass; ``make bench`` prints the ratios."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from costmodels.hardware import LlmShape
from tests.benchmarks.bare import Bench, seconds

torch = pytest.importorskip("torch", reason="hybrid prefilling needs PyTorch: pip install 'prefillsim[hybrid]'")
pytest.importorskip("transformers", reason="hybrid prefilling needs transformers: pip install 'prefillsim[hybrid]'")

pytestmark = [
    pytest.mark.benchmarks,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Inductor's own
]

TOKENS, CHUNK = 4096, 512
SHAPE = LlmShape("bench", layers=4, hidden=512, intermediate=1536, heads=8, kv_heads=4, head_dim=64, vocab=1024)


def test_the_pass_costs_nothing(bench: Bench) -> None:
    """4,096 tokens, chunk 512: compiled virtual layers against the compiled model, at most 1.1 times its time."""
    from gpu_runner.hybrid.baselines import chunked_prefill
    from gpu_runner.hybrid.execute import PLAIN, Switches
    from gpu_runner.hybrid.models import build_model
    from gpu_runner.hybrid.prefill import Prefiller

    torch.set_num_threads(1)
    model = build_model("llama", SHAPE, dtype=torch.float32)
    ids = torch.randint(0, SHAPE.vocab, (TOKENS,))
    hybrid = Prefiller(model, Switches(CHUNK, compiled=True))
    eager = hybrid.with_switches(PLAIN)
    whole = torch.compile(model.get_decoder())

    def plain() -> Any:
        with torch.no_grad():
            return hybrid.logits(whole(input_ids=ids[None], use_cache=False)[0])

    torch.testing.assert_close(hybrid.prefill(ids), plain(), rtol=1e-4, atol=1e-4)
    pairs = [(seconds(lambda: hybrid.prefill(ids)), seconds(plain)) for _ in range(7)]
    chunked = [
        seconds(lambda: chunked_prefill(eager, ids, CHUNK)) / seconds(lambda: eager.prefill(ids)) for _ in range(5)
    ]
    ratio = statistics.median(a / b for a, b in pairs)
    bench("hybrid prefilling, compiled", f"{ratio:.2f} of the plain pass", "<= 1.1")
    bench("chunked prefill, not compiled", f"{statistics.median(chunked):.2f} of the plain pass", "")
    assert ratio <= 1.1
