"""The profile table: how long steps took, in one schema whoever measured or composed them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from costmodels.base import CostModelError
from costmodels.files import read_bounded
from costmodels.profile_checks import check_rows, find_suspects

FORMAT_VERSION = 1

METADATA_KEY = b"prefillsim_profile"

SETTING = {
    "device": "string",
    "model": "string",
    "dtype": "string",
    "tensor_parallel": "int64",
    "engine": "string",
    "engine_version": "string",
}
"""Columns that say what was measured: the same in every row of a table."""

FEATURES = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")

UNITS = {"duration_ns": "ns", "host_ns": "ns", "energy_mj": "mJ"}

OPTIONAL = ("host_ns", "energy_mj")
"""Time of a step that the host needs, inside ``duration_ns``; energy of all its GPUs in millijoules."""

COLUMNS = (*SETTING, *FEATURES, "duration_ns", "repeat")


class ProfileError(CostModelError):
    """A profile table that cannot be used; the message says what is wrong, where, and what would be right."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Steps of one model on one device, a row each, with the features of :class:`costmodels.base.CostModel`.

    ``frame`` has the columns ``device, model, dtype, tensor_parallel, engine, engine_version``, the six features,
    ``duration_ns`` (the whole step, host overhead included), ``repeat`` (0, 1, ... of the same shape) and optionally
    ``host_ns`` and ``energy_mj``; integers but for the names.

    Raises:
        ProfileError: if columns are missing, unknown, not whole numbers or in other units; a duration is not
            positive; features contradict each other; a row is there twice; settings differ; or all rows are one shape.
    """

    frame: pd.DataFrame
    provenance: Mapping[str, Any]
    """Where the numbers are from: ``source``, and whatever else lets one make them again; ``notes`` are warnings."""
    name: str = "profile"
    warnings: tuple[str, ...] = field(init=False)
    """What a fit should know, a sentence each: constant columns, outliers, times that fall as work grows."""
    outlier: np.ndarray[Any, np.dtype[np.bool_]] = field(init=False)
    """Which rows took several times what comparable steps took, shape (rows,). Flagged, never dropped."""
    non_monotone: int = field(init=False)
    """Shapes whose median is below that of a shape with no more of any feature."""

    def __post_init__(self) -> None:
        if not str(self.provenance.get("source", "")).strip():
            raise ProfileError(f"{self.name}: the provenance must say the source of the numbers")
        object.__setattr__(self, "frame", _typed(self.frame, self.name))
        problem = check_rows(self.frame, list(SETTING), list(FEATURES))
        if problem is not None:
            raise ProfileError(f"{self.name}: {problem}")
        suspects = find_suspects(self.frame, list(FEATURES))
        notes = tuple(str(note) for note in self.provenance.get("notes", ()))
        object.__setattr__(self, "warnings", (*notes, *suspects.warnings))
        object.__setattr__(self, "outlier", suspects.outlier)
        object.__setattr__(self, "non_monotone", suspects.non_monotone)

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def setting(self) -> dict[str, Any]:
        """What was measured: the values of the setting's columns."""
        return {c: self.frame[c].tolist()[0] for c in SETTING}

    @property
    def estimated(self) -> bool:
        """Whether the steps come from specifications and not from measurements."""
        return bool(self.provenance.get("estimated", False))

    @property
    def shape(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of each row's shape, the groups of a cross-validation, shape (rows,)."""
        groups = self.frame.groupby(list(FEATURES), sort=True).ngroup()
        return np.asarray(groups, dtype=np.int64)


def write_profile(path: Path, frame: pd.DataFrame, provenance: Mapping[str, Any]) -> Profile:
    """Check a table and write it as parquet, whole or not at all; equal tables make equal bytes.

    Raises:
        ProfileError: if it is not a profile table, see :class:`Profile`.
        OSError: if the file cannot be written.
    """
    profile = Profile(frame, provenance, path.name)
    about = {"version": FORMAT_VERSION, "units": UNITS, "provenance": dict(provenance)}
    try:
        text = json.dumps(about, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ProfileError(f"{path.name}: the provenance cannot be written as JSON: {e}") from None
    table = pa.Table.from_pandas(profile.frame, preserve_index=False)
    table = table.replace_schema_metadata({METADATA_KEY: text.encode()})
    partial = path.with_name(f".{path.name}.partial")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return profile


def read_profile(path: Path) -> Profile:
    """Read a profile table that :func:`write_profile` wrote.

    Raises:
        ProfileError: if the file cannot be read, is of a newer version, declares other units, or is not a profile
            table, see :class:`Profile`.
    """
    name = path.name
    try:
        table = pq.read_table(pa.BufferReader(read_bounded(path)))
    except (OSError, pa.ArrowException) as e:
        reason = getattr(e, "strerror", None) or "it is not a parquet file"
        raise ProfileError(f"profile {path} cannot be read: {reason}") from None
    about = _about((table.schema.metadata or {}).get(METADATA_KEY), name)
    return Profile(table.replace_schema_metadata(None).to_pandas(), about["provenance"], name)


def _about(raw: bytes | None, name: str) -> dict[str, Any]:
    if raw is None:
        raise ProfileError(f"{name}: this parquet file says nothing of a profile table; write it with write_profile")
    try:
        about: Any = json.loads(raw)
        version, units, provenance = about["version"], about["units"], about["provenance"]
    except (ValueError, TypeError, KeyError):
        raise ProfileError(f"{name}: the profile table's metadata is damaged; write it again") from None
    if version != FORMAT_VERSION:
        newer = type(version) is int and version > FORMAT_VERSION
        raise ProfileError(
            f"{name}: format version {version!r} is not {FORMAT_VERSION}, the one read here"
            + "; it was written by a newer version" * newer
        )
    other = {c: units.get(c) for c in UNITS if units.get(c) != UNITS[c]} if isinstance(units, dict) else {"units": None}
    if other:
        column, unit = next(iter(other.items()))
        raise ProfileError(f"{name}: {column} is declared in {unit!r}; it must be in {UNITS.get(column)!r}")
    if not isinstance(provenance, dict):
        raise ProfileError(f"{name}: the provenance is not an object")
    return about  # type: ignore[no-any-return]


def _typed(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the frame with the schema's columns in its order and types."""
    missing = [c for c in COLUMNS if c not in frame.columns]
    unknown = [str(c) for c in frame.columns if c not in COLUMNS and c not in OPTIONAL]
    if missing:
        other = [c for c in unknown if c.split("_")[0] in {m.split("_")[0] for m in missing}]
        meant = f"; {other[0]} is not {UNITS.get(missing[0]) or missing[0]}" if other else ""
        raise ProfileError(f"{name}: column {missing[0]} is missing{meant} (columns: {', '.join(COLUMNS)})")
    if unknown:
        raise ProfileError(
            f"{name}: unknown column {unknown[0]} (columns: {', '.join(COLUMNS)}; optional: {', '.join(OPTIONAL)})"
        )
    typed: dict[str, Any] = {}
    for column in (*COLUMNS, *(c for c in OPTIONAL if c in frame.columns)):
        if SETTING.get(column) == "string":
            typed[column] = _strings(frame[column], name)
        else:
            typed[column] = _whole(frame[column], name)
    return pd.DataFrame(typed)


def _strings(values: pd.Series[Any], name: str) -> list[str]:
    texts: list[Any] = values.tolist()
    bad = [i for i, v in enumerate(texts) if not isinstance(v, str) or not v.strip()]
    if bad:
        raise ProfileError(f"{name}: {values.name} of row {bad[0]} is {texts[bad[0]]!r}; it must be a name")
    return texts


def _whole(values: pd.Series[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        if values.dtype == object and not all(isinstance(v, (int, float)) for v in values):
            raise TypeError
        numbers = values.to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise ProfileError(f"{name}: {values.name} holds what is not a number; it must be whole numbers") from None
    bad = np.flatnonzero(~(np.isfinite(numbers) & (np.abs(numbers) < 2**62) & (np.floor(numbers) == numbers)))
    if len(bad):
        unit = UNITS.get(str(values.name))
        of = f" of {unit}; another unit?" if unit else ""
        raise ProfileError(
            f"{name}: {values.name} of row {bad[0]} is {numbers[bad[0]]:g}; it must be a whole number{of}"
        )
    if values.dtype.kind == "f":
        return numbers.astype(np.int64)
    return values.to_numpy(dtype=np.int64)
