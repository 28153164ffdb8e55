"""Arrow arrays from buffers: ``pyarrow.array`` imports pandas, which takes longer than a small simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any], null: NDArray[np.bool_]) -> Any:
    """Return integers or floats of shape (n,) as an array of their type, missing where ``null`` is true."""
    held = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), [_bits(~null), pa.py_buffer(held)])


def strings(values: Sequence[str | None]) -> Any:
    """Return texts as an array, missing where they are ``None``."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    known = np.array([value is not None for value in values], dtype=bool)
    buffers = [_bits(known), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _bits(values: NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
