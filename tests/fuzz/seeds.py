"""Good input of every kind to start from, and the words of its language."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from costmodels.io import shipped_models
from policies.spec import PolicySpec
from tests.fuzz.nasty import LINEAR, NNLS
from traces.io import write_trace
from traces.schema import Segments, Trace

DATA = Path(__file__).parents[1] / "data"
SHIPPED = Path(__file__).parents[2] / "costmodels" / "data"

POLICIES = (
    "fcfs+full",
    "sloweave:tpot=25,cap=512,margin=5%,age=100,overrun=2",
    "srjf-calibrated:lam=500,jct=linear+fixed:chunk=256",
    "edf:ttft=1000+guarded:window=10+queue-limit:limit=5",
    "vllm-default",
    "lpm+token-budget:budget=64,seqs=8,threshold=32+decode-saturation:tpot=25,action=redirect",
)

TOML = b"""name = "one"
policies = ["fcfs+full", "sloweave"]
slo = "ttft:1000,tpot_p99:25"
seeds = [1, 2]
[trace]
workload = "chat"
rate = 5.0
[engine]
max_num_seqs = 64
[memory]
blocks = 100
[cluster]
replicas = 2
[sweep]
rate = [1, 2]
"""


def _parquet() -> bytes:
    trace = Trace(
        np.array([0, 5]),
        np.array([3, 4]),
        np.array([1, 1]),
        Segments(np.array([0, 1, 3]), np.array([1, 1, 2]), np.array([3, 3, 1])),
        tenant=np.array(["a", None], dtype=object),
    )
    with TemporaryDirectory() as folder:  # several processes collect these tests at once
        path = Path(folder) / "seed.parquet"
        write_trace(trace, path)
        return path.read_bytes()


_LINEAR = {"kind": "linear", **{f"{c}_ns": 100 for c in LINEAR}}
_TREE = {"inputs": [0, -1, -1], "thresholds": [5, 0, 0], "left": [1, -1, -1], "right": [2, -1, -1], "values": [0, 1, 2]}
_MODELS = (
    _LINEAR,
    NNLS,
    {"kind": "with-margin", "model": _LINEAR, "constant_ns": 5, "relative": "1/20"},
    {"kind": "boosted", "base": NNLS, "trees": [_TREE]},
)

SEEDS: dict[str, list[bytes]] = {
    "trace": [*(path.read_bytes() for path in sorted(DATA.iterdir())), _parquet()],
    "toml": [TOML],
    "set": [b"engine.max_num_seqs=64", b"seeds=[1, 2]", b'trace.workload="chat"', b"policies=fcfs+full"],
    "policy": [text.encode() for text in POLICIES],
    "stored-policy": [json.dumps(PolicySpec.parse(text).to_dict()).encode() for text in POLICIES],
    "slo": [b"ttft:1000,tpot_p99:25", b"itl_max:0.5"],
    "cost-model": [
        *(json.dumps(model).encode() for model in _MODELS),
        *((SHIPPED / f"{name}.json").read_bytes() for name in shipped_models()[:1]),
    ],
}

_JSON = ["{", "}", "[", "]", ":", ",", '"', "null", "true", "-1", "0", "1e99", "NaN", "Infinity", "9" * 30, "\\u0000"]

WORDS: dict[str, list[str]] = {
    "trace": [*_JSON, "\n", "\r", "1e3", "-", "\0", "2023-11-16 18:17:03", "hash_ids", "timestamp"],
    "toml": [*_JSON, "=", "\n", ".", "[trace]", "file", "'''", "0x", "nan", "inf", "1979-05-27", "sweep.", "policies"],
    "set": [*_JSON, "=", ".", "sweep", "trace", "memory", "'", "cost_model", "plugins"],
    "policy": [
        "+",
        ":",
        ",",
        "=",
        "|",
        "%",
        "p99",
        "c99",
        "inf",
        "nan",
        "-1",
        "1e400",
        "lam",
        "margin",
        "margins",
        "x:1",
    ],
    "stored-policy": [*_JSON, "ordering", "chunking", "version", "params", "label"],
    "slo": [":", ",", "inf", "nan", "-1", "1e400", "ttft", "jct", "1e-9"],
    "cost-model": [*_JSON, "kind", "linear", "pipeline", "stages", "table", "1/0", "1e5", "model", "calibrated"],
}
