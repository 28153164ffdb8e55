"""Reads the tables of kernel times that NVIDIA ships in ``aiconfigurator-core``."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from costmodels.grids import Curve, FloatArray
from costmodels.kernels import KernelError

PACKAGE = "aiconfigurator-core"

SYSTEMS = {"a100-80": "a100_sxm", "h100-sxm": "h100_sxm", "h200": "h200_sxm", "l40s": "l40s"}
"""GPUs whose vLLM kernels were measured, by our name for them."""

SPECIFICATIONS = {"l4": "l4", "h100-pcie": "h100_pcie", "a100-40": "a100_pcie", "a30": "a30"}
"""GPUs of which there are specifications only."""

ALIGNED = 16
"""The tables have products of multiples of this many tokens, and some of one token more."""

US = 1000.0
"""Microseconds in a millisecond, the unit of the tables."""


def systems_folder() -> Path:
    """Return the folder of the package's tables; the package itself is not imported.

    Raises:
        KernelError: if the package is not installed.
    """
    spec = util.find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise KernelError(f"NVIDIA's kernel times need {PACKAGE}; install it with: pip install 'prefillsim[kernels]'")
    return Path(spec.origin).parent / "systems"


@dataclass(frozen=True, eq=False)
class System:
    """One GPU's tables and specification.

    Raises:
        KernelError: if the GPU is not in the package or was not measured, or the package is not installed.
    """

    gpu: str

    def __post_init__(self) -> None:
        if self.gpu in SPECIFICATIONS:
            raise KernelError(
                f"{PACKAGE} has specifications of {self.gpu} but no measured kernels; use the roofline, an estimate"
            )
        if self.gpu not in SYSTEMS:
            raise KernelError(f"no measured kernels of GPU {self.gpu} (measured: {', '.join(SYSTEMS)})")
        systems_folder()

    @property
    def version(self) -> str:
        """The package's version."""
        return metadata.version(PACKAGE)

    def specification(self) -> dict[str, Any]:
        """Return the sections ``gpu``, ``node`` and ``misc`` of the GPU's specification."""
        text = (systems_folder() / f"{SYSTEMS[self.gpu]}.yaml").read_text(encoding="utf-8")
        spec: dict[str, Any] = import_module("yaml").safe_load(text)
        return spec

    def newest(self, kind: str, name: str) -> Path:
        """Return the table of the newest vLLM version that has it.

        Raises:
            KernelError: if none has.
        """
        tables = (systems_folder() / "data" / SYSTEMS[self.gpu] / kind / "vllm").glob(f"*/{name}_perf.parquet")
        known = sorted(tables, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)])
        if not known:
            raise KernelError(f"{PACKAGE} {self.version} has no table {name} of {self.gpu} with vLLM")
        return known[-1]


def describe(path: Path) -> dict[str, str]:
    """Return where a table is from: its path in the package and its hash."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"file": path.relative_to(systems_folder()).as_posix(), "sha256": digest}


@dataclass(frozen=True, eq=False)
class Products:
    """Times of matrix products on one GPU: ``tokens`` rows by weights of ``n`` columns and ``k`` rows."""

    rows: pd.DataFrame
    bandwidth: float
    """Bytes per second; no product is faster than reading its weights."""

    @classmethod
    def read(cls, path: Path, gpu: str, dtype: str, bandwidth: float) -> Products:
        """Read the products of one data type.

        Raises:
            KernelError: if there are none.
        """
        table = pd.read_parquet(path, columns=["gemm_dtype", "m", "n", "k", "latency"])
        rows = table[(table["gemm_dtype"] == dtype) & (table["latency"] > 0)]
        if rows.empty:
            known = ", ".join(sorted(table["gemm_dtype"].unique()))
            raise KernelError(f"{gpu} has no measured products in {dtype} (measured: {known})")
        return cls(rows.astype({"latency": "float64"}), bandwidth)

    def curve(self, n: int, k: int, weight_bytes: int) -> Curve:
        """Return the times in µs by tokens.

        Between measured widths and depths the time is a power of both; past the largest it grows with the weights.
        One token more than a multiple of 16 takes no longer than the next multiple measured: FP8 products of odd
        sizes take up to twice as long as larger ones, which even sizes between them do not.
        """
        sizes = [np.array(sorted(self.rows[c].unique()), dtype=np.float64) for c in ("n", "k")]
        (n0, n1, across), (k0, k1, along) = (_between(x, s) for x, s in zip((n, k), sizes, strict=True))
        tokens = np.array(sorted(self.rows["m"].unique()), dtype=np.float64)
        log = np.zeros(len(tokens))
        for node, depth, weight in (
            (n0, k0, (1 - across) * (1 - along)),
            (n1, k0, across * (1 - along)),
            (n0, k1, (1 - across) * along),
            (n1, k1, across * along),
        ):
            if weight:
                log += weight * np.log(self._measured(node, depth)(tokens))
        grows = max(n / sizes[0][-1], 1.0) * max(k / sizes[1][-1], 1.0)
        least = n * k * weight_bytes / self.bandwidth * 1e6
        return Curve(tokens, np.maximum(np.exp(log) * grows, least))

    def _measured(self, n: float, k: float) -> Curve:
        rows = self.rows[(self.rows["n"] == n) & (self.rows["k"] == k)].sort_values("m")
        m, time = rows["m"].to_numpy(dtype=np.float64), rows["latency"].to_numpy(dtype=np.float64) * US
        odd = np.flatnonzero(m[:-1] % ALIGNED == 1)
        odd = odd[m[odd] > 1]
        time[odd] = np.minimum(time[odd], time[odd + 1])
        return Curve(m, time)

    def outside(self, n: int, k: int) -> str | None:
        """Return what of a product's weights is larger than any measured."""
        most_n, most_k = (int(self.rows[c].max()) for c in ("n", "k"))
        if n <= most_n and k <= most_k:
            return None
        return f"a product with weights of {n} x {k} (measured to {most_n} x {most_k})"


def _between(x: float, sizes: FloatArray) -> tuple[float, float, float]:
    """Return the sizes around ``x`` and the share of the way from the first, on logarithmic axes."""
    at = float(np.clip(x, sizes[0], sizes[-1]))
    low, high = float(sizes[sizes <= at][-1]), float(sizes[sizes >= at][0])
    return low, high, np.log(at / low) / np.log(high / low) if high > low else 0.0


@dataclass(frozen=True, eq=False)
class Attention:
    """Times in µs of attention for some heads, over the batch and another quantity."""

    batches: FloatArray
    quantity: FloatArray
    time: FloatArray
    """Shape (batches, quantities), NaN where it was not measured."""
    heads: tuple[int, int]
    """Heads and KV heads of the measurement."""


def read_attention(path: Path, quantity: str, heads: int, kv_heads: int, head_dim: int) -> Attention:
    """Read attention with a BF16 cache and no window.

    Without such heads, those with the fewest heads and KV heads that are no fewer.

    Raises:
        KernelError: if there are none.
    """
    table = pd.read_parquet(path)
    rows = table[(table["head_dim"] == head_dim) & (table["kv_cache_dtype"] == "bfloat16") & (table["latency"] > 0)]
    if "window_size" in rows:
        rows = rows[rows["window_size"] == 0]
    known = sorted({(int(h), int(k)) for h, k in rows[["num_heads", "num_key_value_heads"]].to_numpy()})
    enough = [(h * k, h, k) for h, k in known if h >= heads and k >= kv_heads]
    if not enough:
        raise KernelError(f"{path.name} has no attention of {heads} heads of {head_dim} and {kv_heads} KV heads")
    _, h, k = min(enough)
    rows = rows[(rows["num_heads"] == h) & (rows["num_key_value_heads"] == k)]
    wide = rows.pivot_table(index="batch_size", columns=quantity, values="latency", aggfunc="mean") * US
    batches, quantities, time = (np.asarray(x, dtype=np.float64) for x in (wide.index, wide.columns, wide))
    return Attention(batches, quantities, time, (h, k))


def read_all_reduce(path: Path, tp: int, backend: str) -> Curve:
    """Return the times in µs of an all-reduce of BF16 over ``tp`` GPUs, by elements.

    Raises:
        KernelError: if that number of GPUs was not measured.
    """
    table = pd.read_parquet(path)
    rows = table[(table["num_gpus"] == tp) & (table["backend"] == backend)].sort_values("message_size")
    if rows.empty:
        known = ", ".join(str(n) for n in sorted(table["num_gpus"].unique()))
        raise KernelError(f"{path.name} has no all-reduce over {tp} GPUs (measured: {known})")
    return Curve(rows["message_size"].to_numpy(float), rows["latency"].to_numpy(float) * US)
