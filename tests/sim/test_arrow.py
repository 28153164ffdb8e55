"""Arrays from buffers are those that pyarrow makes, and pandas is not imported for them."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.arrow import numbers, strings

SHAPES = st.shared(st.integers(0, 40), key="length")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64, np.float32])
@settings(deadline=None)
@given(data=st.data())
def test_numbers_are_pyarrows(dtype: type, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(dtype, SHAPES))[:: data.draw(st.sampled_from([1, 2, -1]))]
    null = data.draw(hnp.arrays(np.bool_, len(values)))
    made = numbers(values, null)
    made.validate(full=True)
    asked = pa.array(values, mask=null)
    assert made.type == asked.type
    assert made.null_count == asked.null_count
    assert repr(made.to_pylist()) == repr(asked.to_pylist())


@settings(deadline=None)
@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"))))
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
