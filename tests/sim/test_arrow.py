"""Arrays from buffers are those that pyarrow makes, and pandas is not imported for them."""

import random
import subprocess
import sys

import numpy as np
import pyarrow as pa

from sim.arrow import numbers, strings
from tests.seeded import built, cases, pick, whole


def columns(dtype: type, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values of any bits, the extremes among them, in any stride; and which of them are missing."""
    rng = np.random.default_rng(seed)
    values = np.frombuffer(rng.bytes(n * np.dtype(dtype).itemsize), dtype)
    extremes = [0, 1, -1, *((np.nan, np.inf, -np.inf, -0.0) if np.dtype(dtype).kind == "f" else ())]
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    some = np.array([*extremes, limits.min, limits.max], dtype)
    values = np.where(rng.random(n) < 0.3, rng.choice(some, n), values)[:: rng.choice([1, 2, -1])]
    return values, rng.random(len(values)) < rng.choice([0, 0.5, 1])


DTYPES = pick(np.int64, np.int32, np.float64, np.float32)


@cases(400, built(columns, DTYPES, pick(0, 1, *range(2, 41)), whole(0, 2**32)))
def test_numbers_are_pyarrows(made_up: tuple[np.ndarray, np.ndarray]) -> None:
    values, null = made_up
    made = numbers(values, null)
    made.validate(full=True)
    asked = pa.array(values, mask=null)
    assert made.type == asked.type
    assert made.null_count == asked.null_count
    assert repr(made.to_pylist()) == repr(asked.to_pylist())


def texts(rng: random.Random) -> list[str | None]:
    """Make texts of any characters but surrogates; the shorter ones in UTF-8 abound, and empty texts and none."""

    def character() -> str:
        code = rng.randrange(rng.choice([0x80, 0x800, 0x10000, 0x110000]))
        return "\N{SNOWMAN}" if 0xD800 <= code < 0xE000 else chr(code)

    def text() -> str | None:
        return None if rng.random() < 0.2 else "".join(character() for _ in range(rng.choice([0, 1, 3, 20])))

    return [text() for _ in range(rng.choice([0, 1, rng.randint(0, 20)]))]


@cases(150, texts)
def test_strings_are_pyarrows(values: list[str | None]) -> None:
    made = strings(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, type=pa.string()))


def test_a_run_is_written_without_pandas() -> None:
    code = (
        "import sys, numpy as np; from sim.parquet import to_parquet\n"
        "to_parquet({'a': np.arange(3), 'b': np.ones(3), 'c': np.array(['x', None, 'y'], dtype=object)}, {})\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
