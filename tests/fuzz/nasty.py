"""Inputs of about a megabyte that are made to take too long or too much memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MB = 1_000_000

ROWS = 7_000_000
"""Were so many rows read, they would take more than the half gigabyte that is allowed."""

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
MOON = '{"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": %s}\n'


def _parquet(columns: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return buffer.getvalue()


def _rows(n: int, **more: Any) -> dict[str, Any]:
    ones = pa.array(np.ones(n, dtype=np.int64))
    return {"arrival_ns": ones, "prompt_tokens": ones, "output_tokens": ones, **more}


def _same(value: Any, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([value]))


def _list(n: int) -> pa.Array:
    """A list of as many ones; a dictionary's index takes no time to find."""
    return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), _same(1.0, n))


def _margins(depth: int) -> str:
    inner = json.dumps({"kind": "linear", **{f"{c}_ns": 1 for c in LINEAR}})
    head = '{"kind": "with-margin", "constant_ns": 1, "relative": "0", "model": '
    return head * depth + inner + "}" * depth


LINEAR = ("step", "decode", "per_decode", "prefill", "per_token")

NNLS = {
    "kind": "nnls",
    **{
        f"{price}_fs": 1
        for price in (
            "step",
            "decode",
            "prefill",
            "per_decode",
            "per_prefill",
            "pair",
            "context",
            "longest",
            "mixed_decode",
            "mixed_context",
            "mixed_longest",
        )
    },
    "tile": 1,
    "knots": [0],
    "slopes_fs": [1],
}


def _boosted(**tree: list[int]) -> bytes:
    return json.dumps({"kind": "boosted", "base": NNLS, "trees": [tree]}).encode()


def _shared(levels: int) -> bytes:
    """A tree each of whose nodes has the next one for both children."""
    down = list(range(1, levels + 1))
    leaf = [-1]
    return _boosted(
        inputs=[0] * levels + leaf,
        thresholds=[5] * levels + leaf,
        left=down + leaf,
        right=down + leaf,
        values=[0] * levels + [7],
    )


def _far_leaf() -> bytes:
    far = 1 << 70
    return _boosted(inputs=[0, -1, -1], thresholds=[5, 0, 0], left=[1, far, -1], right=[2, -1, far], values=[0, 1, 2])


def _table(knots: int) -> bytes:
    axis = list(range(knots))
    table = {"kind": "table", "cells_ns": {"0.5": []}, "beyond_ns": [1] * 4, "longest": 0, "lookup": "upper"}
    return json.dumps({**table, **dict.fromkeys(("batches", "contexts", "chunks", "depths"), axis)}).encode()


NASTY: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "columns without end": ("trace", lambda: ",".join(f"c{i}" for i in range(MB // 7)) + "\n1\n"),
    "a column name without end": ("trace", lambda: "a" * MB + ",b\n1,2\n"),
    "rows of another width": ("trace", lambda: VIDUR + ",\n" * (MB // 2)),
    "a value without end": ("trace", lambda: VIDUR + '0,5,"' + "5" * MB + '"\n'),
    "a number without end": ("trace", lambda: VIDUR + "0,5," + "5" * MB + "\n"),
    "a time without end": ("trace", lambda: VIDUR + "0." + "5" * MB + ",5,5\n"),
    "nothing but lines": ("trace", lambda: "\n" * MB),
    "nothing but commas": ("trace", lambda: "," * MB),
    "nothing but quotes": ("trace", lambda: '"' * MB),
    "short rows": ("trace", lambda: VIDUR + "0,5,5\n" * (MB // 6)),
    "rows that all fail": ("trace", lambda: VIDUR + "x,x,x\n" * (MB // 6)),
    "one object with many keys, and many without": (
        "trace",
        lambda: json.dumps({f"k{i}": 1 for i in range(99)}) + "\n" + "{}\n" * (MB // 3),
    ),
    "keys without end": ("trace", lambda: json.dumps({f"k{i}": 1 for i in range(MB // 12)})),
    "JSON without end": ("trace", lambda: '{"a":' * (MB // 5)),
    "arrays without end": ("trace", lambda: MOON % ("[" * (MB - 100))),
    "a list just within reach": ("trace", lambda: MOON % ("[" * 960 + "]" * 960)),
    "ids without end": ("trace", lambda: MOON % json.dumps(list(range(MB // 8)))),
    "an id without end": ("trace", lambda: MOON % f"[{'9' * (MB - 100)}]"),
    "an exponent without end": ("trace", lambda: (MOON % "[1]").replace('"timestamp": 0', '"timestamp": 1e999999999')),
    "fractions without end": ("trace", lambda: (MOON % "[1]").replace("0,", "0." + "1" * (MB - 100) + ",", 1)),
    "gzip": ("trace", lambda: gzip.compress(bytes(MB * 100), 1)),
    "bzip2": ("trace", lambda: bz2.compress(bytes(MB * 10))),
    "xz": ("trace", lambda: lzma.compress(bytes(MB * 10), preset=0)),
    "zstd": ("trace", lambda: pa.compress(bytes(MB * 100), "zstd", asbytes=True)),
    "Parquet of equal rows": ("trace", lambda: _parquet(_rows(ROWS))),
    "Parquet without dictionaries": (
        "trace",
        lambda: _parquet(_rows(ROWS), use_dictionary=False, compression="zstd"),
    ),
    "Parquet of gzip": (
        "trace",
        lambda: _parquet(_rows(ROWS), use_dictionary=False, compression="gzip", compression_level=1),
    ),
    "Parquet with a long text in every row": (
        "trace",
        lambda: _parquet(_rows(200_000, tenant=_same("x" * 500_000, 200_000)), write_statistics=False),
    ),
    "Parquet with a long text in every row, not told in its schema": (
        "trace",
        lambda: _parquet(
            _rows(200_000, tenant=_same("x" * 500_000, 200_000)), store_schema=False, write_statistics=False
        ),
    ),
    "Parquet with long bytes": (
        "trace",
        lambda: _parquet(_rows(200_000, id=_same(b"x" * 500_000, 200_000)), write_statistics=False),
    ),
    "Parquet with a long list": (
        "trace",
        lambda: _parquet(_rows(1, segment_ids=_list(2 * ROWS), segment_tokens=_list(2 * ROWS)), store_schema=False),
    ),
    "Parquet of lists": ("trace", lambda: _parquet(_rows(1, tenant=pa.array([np.ones(ROWS)])))),
    "Parquet with columns without end": ("trace", lambda: _parquet(_rows(1, **{f"c{i}": [1] for i in range(2_000)}))),
    "dots without end": ("toml", lambda: ".".join(["a"] * (MB // 2)) + " = 1"),
    "quoted dots without end": ("toml", lambda: ".".join(['"a"'] * (MB // 4)) + " = 1"),
    "spaced dots without end": ("toml", lambda: " . ".join(["a"] * (MB // 4)) + " = 1"),
    "a table's dots without end": ("toml", lambda: "[" + ".".join(["a"] * (MB // 2)) + "]"),
    "TOML arrays without end": ("toml", lambda: "a = " + "[" * MB),
    "TOML tables in tables": ("toml", lambda: "a = " + "{b = " * 150_000),
    "deep TOML": ("toml", lambda: "a = " + "[" * 300 + "]" * 300),
    "a TOML number without end": ("toml", lambda: "seeds = " + "9" * MB),
    "a hexadecimal number without end": ("toml", lambda: "[engine]\nmax_num_seqs = 0x" + "f" * (MB - 100)),
    "TOML names without end": ("toml", lambda: "a" * MB),
    "tables without end": ("toml", lambda: "[[a]]\n" * (MB // 6)),
    "keys of a TOML without end": ("toml", lambda: "\n".join(f"a{i} = 1" for i in range(MB // 12))),
    "a TOML text without end": ("toml", lambda: 'cost_model = "' + "x" * (MB - 100) + '"'),
    "too much TOML": ("toml", lambda: "# x\n" * (MB // 3)),
    "too many seeds": ("toml", lambda: "seeds = 999999999999"),
    "a seed list without end": ("toml", lambda: f"seeds = {list(range(MB // 8))}"),
    "a set without end": ("set", lambda: "trace.rate=" + "[" * MB),
    "a set's dots without end": ("set", lambda: ".".join(["a"] * (MB // 2)) + "=1"),
    "a policy without end": ("policy", lambda: "a" * MB),
    "parts without end": ("policy", lambda: "+".join(["fcfs"] * (MB // 5))),
    "parameters without end": ("policy", lambda: "fcfs+fixed:" + ",".join(f"a{i}=1" for i in range(MB // 10))),
    "a parameter without end": ("policy", lambda: "fcfs+fixed:chunk=" + "9" * MB),
    "a margin without end": ("policy", lambda: "sloweave:margin=" + "9" * MB),
    "margins without end": ("policy", lambda: "sloweave:margins=" + "|".join(f"t{i}:1" for i in range(MB // 10))),
    "a tiny lam": ("policy", lambda: "srjf-calibrated:lam=1e-300+full"),
    "an exponent of lam without end": ("policy", lambda: "srjf-calibrated:lam=1e" + "9" * MB + "+full"),
    "a policy of arrays": ("stored-policy", lambda: '{"ordering": ' + "[" * 900 + "]" * 900 + "}"),
    "objectives without end": ("slo", lambda: ",".join(["ttft:1"] * (MB // 7))),
    "models in models": ("cost-model", lambda: _margins(MB // 80)),
    "models in models, just within JSON's reach": ("cost-model", lambda: _margins(300)),
    "a tree that doubles": ("cost-model", lambda: _shared(35)),
    "a leaf with a far child": ("cost-model", _far_leaf),
    "a table of too many cells": ("cost-model", lambda: _table(1 << 16)),
    "a model of arrays": ("cost-model", lambda: "[" * MB),
    "a coefficient without end": ("cost-model", lambda: '{"kind": "linear", "step_ns": ' + "9" * MB + "}"),
    "an exponent": ("cost-model", lambda: '{"kind": "linear", "step_ns": 1e999999999}'),
    "fields without end": (
        "cost-model",
        lambda: json.dumps({"kind": "linear", **{f"a{i}": 1 for i in range(MB // 12)}}),
    ),
    "a kind without end": ("cost-model", lambda: json.dumps({"kind": "x" * MB})),
    "a name without end": (
        "cost-model",
        lambda: json.dumps({"kind": "linear", "name": "x" * MB, **{f"{c}_ns": -1 for c in LINEAR}}),
    ),
}
