"""Memory measured on the hybrid executor's own code, from files, for the executor needs PyTorch and this does not.

``gpu_runner.hybrid.memory_tables`` wrote the files; their first line says with which versions.
"""

from __future__ import annotations

import csv
from importlib import resources

from experiments.tables import Rows

LENGTHS_FILE, TRACE_FILE = "measured_mil.csv", "measured_trace.csv"

TRACED_TITLE = "Llama-3.1-8B, 32,768 tokens"


def measured_lengths() -> dict[tuple[str, str, str], int]:
    """Return the measured maximum input lengths in tokens, by GPU, model and mode of ``costmodels.memory``."""
    return {(r["gpu"], r["llm"], r["mode"]): int(r["max_input_length"]) for r in _read(LENGTHS_FILE)}


def figure3_rows() -> Rows:
    """Return live bytes beside the weights over one prefill (Figure 3), a row for each span of operators.

    ``share`` is the part of the pass's operators that had run at the end of the span; ``low_gib`` and ``high_gib``
    are the least and the most that was alive in it.
    """
    rows = _read(TRACE_FILE)
    last = {r["mode"]: int(r["operators"]) for r in rows}
    return [
        {
            "mode": r["mode"],
            "operators": int(r["operators"]),
            "share": int(r["operators"]) / last[r["mode"]],
            "low_gib": int(r["low_bytes"]) / 2**30,
            "high_gib": int(r["high_bytes"]) / 2**30,
        }
        for r in rows
    ]


def _read(name: str) -> Rows:
    with (resources.files("experiments.prefillonly") / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
