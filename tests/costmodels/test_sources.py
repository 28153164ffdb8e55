from __future__ import annotations

from importlib import util

import numpy as np
import pytest

from costmodels.base import CostModelError
from costmodels.hardware import load_gpu, load_llm
from costmodels.kernels import step_grid
from costmodels.roofline import roofline
from costmodels.sources import load_kernel_source, with_dtype

GRID = step_grid(decodes=(0, 8), chunks=(0, 256))


def test_a_roofline_by_name_is_the_one_by_hand() -> None:
    named = load_kernel_source("roofline:gpu=h100-pcie,llm=llama-3.1-8b,tp=2,link=pcie,host_ns=50")
    by_hand = roofline(load_llm("llama-3.1-8b"), load_gpu("h100-pcie"), 2, "pcie", 50)
    np.testing.assert_array_equal(named.duration_ns(GRID), by_hand.duration_ns(GRID))


@pytest.mark.skipif(util.find_spec("aiconfigurator_core") is None, reason="needs the extra [kernels]")
def test_measured_kernels_by_name() -> None:
    source = load_kernel_source("nvidia:gpu=h100-sxm,llm=llama-3.3-70b-fp8,tp=8,dtype=bf16")
    assert (source.llm.name, source.tp, source.device) == ("llama-3.3-70b", 8, "h100-sxm")


def test_a_dtype_changes_the_layers_weights_and_the_name() -> None:
    llama, qwen = load_llm("llama-3.1-8b"), load_llm("qwen-32b-fp8")
    assert with_dtype(llama, None) is with_dtype(llama, "bf16") is llama
    assert (with_dtype(llama, "fp8").name, with_dtype(llama, "fp8").linear_bytes) == ("llama-3.1-8b-fp8", 1)
    assert with_dtype(qwen, "bf16").name == "qwen-32b"
    assert with_dtype(with_dtype(qwen, "bf16"), "fp8") == qwen


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nvidea:gpu=l4,llm=llama-3.1-8b", "unknown kind 'nvidea'; did you mean nvidia?"),
        ("roofline:gpu=l4", "llm is missing"),
        ("roofline:gpu=l4,llm=llama-3.1-8b,tpp=2", "unknown parameter 'tpp=2'; did you mean tp?"),
        ("roofline:gpu=l4,llm", "expected name=value, not 'llm'"),
        ("roofline:gpu=l4,gpu=l4,llm=llama-3.1-8b", "gpu is given twice"),
        ("roofline:gpu=l4,llm=llama-3.1-8b,tp=0", "tp is '0'; it must be a whole number"),
        ("roofline:gpu=l4,llm=llama-3.1-8b,dtype=fp16", "unknown dtype 'fp16'; did you mean bf16?"),
        ("roofline:gpu=l5,llm=llama-3.1-8b", "unknown GPU l5"),
        ("csv:folder=nowhere,llm=llama-3.1-8b", "kernel_attention.csv cannot be read"),
    ],
)
def test_names_that_mean_nothing_are_refused(text: str, says: str) -> None:
    with pytest.raises(CostModelError) as e:
        load_kernel_source(text)
    assert says in str(e.value)
