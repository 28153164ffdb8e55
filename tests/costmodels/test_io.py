"""Cost models in JSON: whole there and back, and one sentence for every file that is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels import (
    CostModel,
    CostModelError,
    LinearCost,
    load_cost_model,
    save_cost_model,
    shipped_models,
    with_margin,
)
from costmodels.io import cost_model_from_dict
from tests.costmodels.strategies import cost
from tests.seeded import cases

GOOD = {"version": 1, **LinearCost(name="good").to_dict()}
MARGIN = {"version": 1, **with_margin(LinearCost(name="good"), "5%").to_dict()}


def without_names(data: Any) -> Any:
    """A model's JSON without its name and those of the models in it."""
    if isinstance(data, list):
        return [without_names(v) for v in data]
    return {k: without_names(v) for k, v in data.items() if k != "name"} if isinstance(data, dict) else data


UNNAMED = {
    model.to_dict()["kind"]: without_names(model.to_dict())
    for model in (
        *map(load_cost_model, shipped_models()),
        with_margin(LinearCost(), "5%"),
        load_cost_model("prefill:llm=llama-3.1-8b,gpu=l4"),
        load_cost_model("prefill:llm=llama-3.1-8b,gpu=l4,pp=2,link=pcie"),
    )
}


@cases(100, cost)
def test_json_gives_the_model_back(model: CostModel) -> None:
    assert cost_model_from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False))) == model


@pytest.mark.parametrize(
    "model",
    [
        LinearCost(name="größer", residual_quantiles={"0.5": 0, "0.99": 7}, source="measured"),
        with_margin(with_margin(LinearCost(step=1), "33.3%"), "2"),
    ],
    ids=["linear", "margins"],
)
def test_a_file_gives_the_model_back(model: CostModel, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text("something older")
    save_cost_model(model, path)
    assert load_cost_model(str(path)) == model
    assert [p.name for p in tmp_path.iterdir()] == ["gpu.json"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(OSError, match="taken"):
        save_cost_model(LinearCost(), tmp_path / "taken.json")
    assert [p.name for p in tmp_path.iterdir()] == ["taken.json"]


@pytest.mark.parametrize("kind", sorted(UNNAMED))
def test_a_model_without_a_name_has_the_same_one_from_every_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "mine.json").write_text(json.dumps(UNNAMED[kind]))
    monkeypatch.chdir(tmp_path)
    here = load_cost_model("ci/mine.json")
    monkeypatch.chdir("ci")
    for path in ("mine.json", "./mine.json", str(tmp_path / "ci" / "mine.json")):
        assert load_cost_model(path).name == here.name
        assert load_cost_model(path).to_dict() == here.to_dict()
    assert here.name.startswith("mine.json")


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_goes_by_its_name_and_says_where_it_is_from(name: str) -> None:
    model = load_cost_model(name)
    assert model.name == name
    data = model.to_dict()
    assert data.get("model", data)["source"]


def without(field: str) -> dict[str, Any]:
    return {k: v for k, v in GOOD.items() if k != field}


BAD: dict[str, tuple[Any, str]] = {
    "array": ([], "a cost model is a JSON object, not an array"),
    "string": ("linear", "a cost model is a JSON object, not a string"),
    "number": (3, "a cost model is a JSON object, not a number"),
    "null": (None, "a cost model is a JSON object, not null"),
    "no kind": (without("kind"), "kind is missing (kinds: linear, with-margin, prefill, pipeline, "),
    "unknown kind": (
        GOOD | {"kind": "liner"},
        "unknown kind 'liner'; did you mean linear? (kinds: linear, with-margin, ",
    ),
    "kind of another type": (GOOD | {"kind": ["linear"]}, "unknown kind ['linear']"),
    "newer": (GOOD | {"version": 2}, "format version 2 is not 1, the one read here; it was written by a newer version"),
    "older": (GOOD | {"version": 0}, "format version 0 is not 1, the one read here"),
    "version as text": (GOOD | {"version": "1"}, "format version '1' is not 1, the one read here"),
    "version as truth": (GOOD | {"version": True}, "format version True is not 1, the one read here"),
    "missing": (without("per_token_ns"), "per_token_ns is missing"),
    "unknown": (GOOD | {"per_tokens_ns": 3}, "unknown field per_tokens_ns; did you mean per_token_ns?"),
    "unlike any": (GOOD | {"zzz": 3}, "unknown field zzz"),
    "negative": (GOOD | {"step_ns": -1}, "step_ns is -1; it must be a whole number of nanoseconds from 0 to 10**12"),
    "float": (GOOD | {"step_ns": 1.5}, "step_ns is 1.5; it must be a whole number"),
    "whole float": (GOOD | {"step_ns": 350000.0}, "step_ns is 350000.0; it must be a whole number"),
    "truth": (GOOD | {"step_ns": True}, "step_ns is True; it must be a whole number"),
    "text": (GOOD | {"step_ns": "350000"}, "step_ns is '350000'; it must be a whole number"),
    "null coefficient": (GOOD | {"step_ns": None}, "step_ns is None; it must be a whole number"),
    "NaN": (GOOD | {"step_ns": float("nan")}, "step_ns is nan; it must be a whole number"),
    "infinite": (GOOD | {"step_ns": float("inf")}, "step_ns is inf; it must be a whole number"),
    "huge": (GOOD | {"step_ns": 10**30}, "it must be a whole number of nanoseconds from 0 to 10**12"),
    "no time": (GOOD | {"step_ns": 0, "decode_ns": 0, "per_decode_ns": 0}, "a step would take no time"),
    "name": (GOOD | {"name": 3}, "name is a number; it must be a string"),
    "source": (GOOD | {"source": []}, "source is an array; it must be a string"),
    "quantiles": (GOOD | {"residual_quantiles_ns": [1]}, "residual_quantiles_ns is an array; it must be an object"),
    "quantile": (GOOD | {"residual_quantiles_ns": {"0.9": -1}}, "the residual quantile 0.9 is -1; it must be a whole"),
    "quantile's name": (GOOD | {"residual_quantiles_ns": {"p9": 1}}, "the residual quantile 'p9' must be a decimal"),
    "margin's model": (MARGIN | {"model": 3}, "model: a cost model is a JSON object, not a number"),
    "margin's field": (MARGIN | {"model": without("step_ns")}, "model: step_ns is missing"),
    "margin's share": (MARGIN | {"relative": 0.05}, 'relative is 0.05; it must be a fraction like "1/20"'),
    "margin's zero": (MARGIN | {"relative": "1/0"}, "relative is '1/0'; it must be a fraction"),
    "margin's exponent": (MARGIN | {"relative": "1e99999999"}, "relative is '1e99999999'; it must be a fraction"),
    "margin's constant": (MARGIN | {"constant_ns": 0.5}, "constant_ns is 0.5; it must be a whole number"),
    "margin's sign": (MARGIN | {"relative": "-1/2"}, "neither may be negative"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_names_the_file_and_the_field(case: str, tmp_path: Path) -> None:
    data, message = BAD[case]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CostModelError, match=re.escape(message)) as e:
        load_cost_model(str(path))
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON: "),
    "truncated": (json.dumps(GOOD).encode()[:-20], "is not JSON: "),
    "binary": (bytes(range(256)), "is not JSON: "),
    "deep": (b"[" * 100_000, "is not JSON: "),
    "endless number": (b'{"step_ns": 1' + b"0" * 5000 + b"}", "is not JSON: "),
    "twice": (b'{"kind": "linear", "kind": "linear"}', "kind is given twice"),
    "twice inside": (b'{"residual_quantiles_ns": {"0.5": 1, "0.5": 2}}', "0.5 is given twice"),
}


@pytest.mark.parametrize("case", RAW)
def test_a_file_that_is_no_json_is_said_so(case: str, tmp_path: Path) -> None:
    content, message = RAW[case]
    path = tmp_path / "gpu.json"
    path.write_bytes(content)
    with pytest.raises(CostModelError, match=re.escape(message)) as e:
        load_cost_model(str(path))
    assert str(path) in str(e.value)
    assert "\n" not in str(e.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text("\ufeff" + json.dumps(GOOD), encoding="utf-8")
    assert load_cost_model(str(path)).name == "good"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sloweave-papper", "unknown cost model sloweave-papper; did you mean sloweave-paper? (shipped: "),
        ("zzz", "unknown cost model zzz (shipped: "),
        ("no/such.json", "cost model no/such.json cannot be read: No such file or directory"),
        ("./", "cost model ./ cannot be read: Is a directory"),
        ("a\0.json", "cannot be read: embedded null byte"),
    ],
)
def test_a_model_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        load_cost_model(name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from([GOOD, MARGIN]), st.data())
def test_any_value_anywhere_is_a_model_or_a_cost_model_error(good: dict[str, Any], data: st.DataObject) -> None:
    changed = good | {data.draw(st.sampled_from(sorted(good)) | st.text(max_size=3)): data.draw(json_values)}
    try:
        model = cost_model_from_dict(changed)
    except CostModelError:
        return
    assert cost_model_from_dict(model.to_dict()) == model
