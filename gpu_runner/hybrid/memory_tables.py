"""Measured memory as CSV files, for readers without PyTorch: maximum input lengths, and the trace of one prefill.

``python -m gpu_runner.hybrid.memory_tables --out experiments/prefillonly`` writes the two files that the PrefillOnly
figures read. Nothing is computed and no memory is taken: the executor's own code runs on tensors without memory.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from costmodels.base import CostModelError
from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.memory import CHUNK
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.memory import envelope
from gpu_runner.hybrid.mil import MODES, Measured
from sim.store import atomic_write

Rows = list[dict[str, Any]]

PAIRS = (("l4", "llama-3.1-8b"), ("a100-40", "qwen-32b-fp8"), ("h100-pcie", "llama-3.3-70b-fp8"))
"""GPU and model of PrefillOnly's Table 3."""

TRACED_MODES = ("paged", "discard", "chunked", "hybrid")
TRACED_LLM, TRACED_TOKENS = "llama-3.1-8b", 32_768
"""What PrefillOnly's Figure 3 shows."""

POINTS = 320
"""Points of a trace that are kept: ten for each of the layers of a whole prompt's prefill."""

LENGTHS_FILE, TRACE_FILE = "measured_mil.csv", "measured_trace.csv"


def architecture_of(llm: LlmShape) -> str:
    """Return the transformers architecture of a shape: Qwen2 is Llama with biases on query, key and value."""
    return "qwen2" if llm.qkv_bias else "llama"


def length_rows(pairs: Sequence[tuple[str, str]] = PAIRS, modes: Sequence[str] = MODES) -> Rows:
    """Return the maximum input length, in tokens, of models on GPUs by each way of prefilling.

    Raises:
        HardwareError: if a name is unknown or the weights do not fit.
        HybridError: if a mode is unknown.
    """
    rows: Rows = []
    for gpu, name in pairs:
        llm = load_llm(name)
        measured = Measured(llm, architecture_of(llm), CHUNK)
        for mode in modes:
            length = measured.max_input_length(mode, load_gpu(gpu))
            rows.append({"gpu": gpu, "llm": name, "mode": mode, "chunk": CHUNK, "max_input_length": length})
    return rows


def trace_rows(
    llm: LlmShape, tokens: int, modes: Sequence[str] = TRACED_MODES, points: int = POINTS, chunk: int = CHUNK
) -> Rows:
    """Return the live bytes of one prefill through all layers: the least and the most in each of ``points`` spans.

    ``operators`` is how many had run at the end of the span. Weights are not in it; KV that is kept is.

    Raises:
        HybridError: if a mode is unknown.
    """
    measured = Measured(llm, architecture_of(llm), chunk, llm.layers)
    return [
        {"mode": mode, "operators": at, "low_bytes": low, "high_bytes": high}
        for mode in modes
        for at, low, high in envelope(measured.trace(mode, tokens), points)
    ]


def csv_text(rows: Rows, about: str) -> str:
    """Return rows as CSV after a line of comment that says what they are and what made them."""
    text = io.StringIO()
    text.write(
        f"# {about}; torch {torch.__version__}, transformers {transformers.__version__}; "
        "python -m gpu_runner.hybrid.memory_tables --out experiments/prefillonly\n"
    )
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both tables, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.hybrid.memory_tables", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="an existing folder; files of these names are replaced")
    out: Path = parser.parse_args(arguments).out
    if not out.is_dir():
        print(f"{out} is not a folder; --out names one that exists", file=sys.stderr)
        return 2
    of = f"{TRACED_LLM}, {TRACED_TOKENS} tokens, chunk {CHUNK}"
    try:
        lengths = csv_text(length_rows(), "maximum input length in tokens, tensors without memory")
        atomic_write(out / LENGTHS_FILE, lengths.encode())
        trace = csv_text(
            trace_rows(load_llm(TRACED_LLM), TRACED_TOKENS), f"live bytes beside weights, {of}, tensors without memory"
        )
        atomic_write(out / TRACE_FILE, trace.encode())
    except (HybridError, CostModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
