"""Cost models by name or from a JSON file, and back to one. Never pickled."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from costmodels.base import CostModel, CostModelError
from costmodels.boosted import BoostedCost, Tree
from costmodels.calibrated import FEATURES, CalibratedCost, ResidualTable, WithResiduals
from costmodels.erring import ERRING, RANGES, ErringCost, parse_erring
from costmodels.files import read_bounded
from costmodels.linear import COEFFICIENTS, LinearCost
from costmodels.margin import WithMargin
from costmodels.nnls import PRICES, NnlsCost
from costmodels.parallel import PREFIX, named_prefill_cost
from costmodels.prefill import COEFFICIENTS as PREFILL_COEFFICIENTS
from costmodels.prefill import PipelineCost, PrefillCost
from costmodels.scaled import ScaledCost
from costmodels.table import AXES, TableCost

FORMAT_VERSION = 1

MOST_NESTED = 20
"""Models within models; each is evaluated by calling the next."""

MOST_NAME = 300
"""Characters of a model's name, which begins its messages."""

MOST_KNOTS = 1 << 15
"""Of one axis of a table."""

FRACTION = re.compile(r"-?[0-9]{1,60}([/.][0-9]{1,60})?")
"""A share; without exponents, for 1e99999999 takes minutes to write out."""

NUMBERS = re.compile(r"\[\n\s*((?:-?\d+,\n\s*)*-?\d+)\n\s*\]")
"""An array of whole numbers with a line for each; on one line it is shorter and as readable."""


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package."""
    data = resources.files("costmodels") / "data"
    return sorted(f.name.removesuffix(".json") for f in data.iterdir() if f.name.endswith(".json"))


def load_cost_model(name: str) -> CostModel:
    """Load a shipped model by name, a JSON file by path, one derived from data sheets, or one that errs on purpose.

    The third is written like ``"prefill:llm=llama-3.1-8b,gpu=l4,tp=2,link=pcie"``, see
    :func:`costmodels.parallel.prefill_cost`; the last like ``"erring:of=NAME,bias=5%,noise=3%"``, see
    :func:`costmodels.erring.parse_erring`.

    Raises:
        CostModelError: if there is none, or the file is not a cost model that this version reads.
    """
    if name.startswith(PREFIX):
        return named_prefill_cost(name)
    if name.startswith(ERRING):
        of, numbers = parse_erring(name)
        return ErringCost(load_cost_model(of), **numbers)
    return cost_model_from_dict(_read(name), name)


def load_card(name: str) -> dict[str, Any]:
    """Return what a shipped model's or a file's card says of its fit and range; empty where there is none.

    A model that errs on purpose is of the same device, but how well the other one fits says nothing of it.

    Raises:
        CostModelError: as for :func:`load_cost_model`.
    """
    if name.startswith(ERRING):
        return {key: value for key, value in load_card(parse_erring(name)[0]).items() if key != "fit"}
    data = {} if name.startswith(PREFIX) else _read(name)
    card = data.get("card", {}) if isinstance(data, dict) else {}
    return card if isinstance(card, dict) else {}


def _read(name: str) -> Any:
    if name in shipped_models():
        raw = (resources.files("costmodels") / "data" / f"{name}.json").read_bytes()
    elif name.endswith(".json") or "/" in name:
        try:
            raw = read_bounded(Path(name))
        except (OSError, ValueError) as e:
            raise CostModelError(f"cost model {name} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    else:
        raise CostModelError(
            f"unknown cost model {name}{_nearest(name, shipped_models())} (shipped: {', '.join(shipped_models())}; "
            f"or {PREFIX}llm=...,gpu=...; or {ERRING}of=NAME,bias=5%; or the path of a .json file)"
        )
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique)
    except CostModelError as e:
        raise CostModelError(f"{name}: {e}") from None
    except (ValueError, RecursionError) as e:
        raise CostModelError(f"cost model {name} is not JSON: {e}") from None


def _deeper(data: Any, most: int) -> bool:
    """Whether arrays and objects lie within each other more than ``most`` deep."""
    level = [data]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [key for key, _ in pairs]
        raise CostModelError(f"{next(n for n in names if names.count(n) > 1)} is given twice")
    return data


def cost_model_from_dict(data: Any, source: str = "cost model") -> CostModel:
    """Build the model that a ``to_dict`` described; a ``card`` beside it is for people, see :func:`load_card`.

    Raises:
        CostModelError: if a field is missing, unknown or not valid; ``source`` begins the message.
    """
    if not isinstance(data, dict):
        raise CostModelError(f"{source}: a cost model is a JSON object, not {_json_type(data)}")
    if _deeper(data, MOST_NESTED):
        raise CostModelError(f"{source}: a cost model is nested no more than {MOST_NESTED} deep")
    version = data.get("version", FORMAT_VERSION)
    if type(version) is not int or version != FORMAT_VERSION:
        newer = "; it was written by a newer version" if type(version) is int and version > FORMAT_VERSION else ""
        raise CostModelError(f"{source}: format version {version!r} is not {FORMAT_VERSION}, the one read here{newer}")
    card = data.get("card", {})
    if not isinstance(card, dict):
        raise CostModelError(f"{source}: card is {_json_type(card)}; it must be an object")
    data = {field: value for field, value in data.items() if field != "card"}
    if "kind" not in data:
        raise CostModelError(f"{source}: kind is missing (kinds: {', '.join(KINDS)})")
    kind = data["kind"]
    if kind not in KINDS:
        raise CostModelError(
            f"{source}: unknown kind {_short(kind)}{_nearest(str(kind), KINDS)} (kinds: {', '.join(KINDS)})"
        )
    try:
        return READERS[kind](data, source)
    except CostModelError as e:
        raise CostModelError(str(e) if str(e).startswith(f"{source}: ") else f"{source}: {e}") from None


def save_cost_model(model: CostModel, path: Path, card: dict[str, Any] | None = None) -> None:
    """Write ``model`` as JSON, with its card if there is one, whole or not at all.

    Raises:
        OSError: if the file cannot be written.
    """
    document = {"version": FORMAT_VERSION, **model.to_dict(), **({} if card is None else {"card": card})}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    text = NUMBERS.sub(lambda array: f"[{' '.join(array[1].split())}]", text)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _linear(data: dict[str, Any], source: str) -> LinearCost:
    coefficients = [f"{c}_ns" for c in COEFFICIENTS]
    _check_fields(data, source, coefficients, ["name", "source", "residual_quantiles_ns"])
    quantiles = data.get("residual_quantiles_ns", {})
    if not isinstance(quantiles, dict):
        raise CostModelError(f"{source}: residual_quantiles_ns is {_json_type(quantiles)}; it must be an object")
    return LinearCost(
        name=_name(data, source),
        residual_quantiles=quantiles,
        source=data.get("source", ""),
        **{c: data[f"{c}_ns"] for c in COEFFICIENTS},
    )


def _with_margin(data: dict[str, Any], source: str) -> WithMargin:
    _check_fields(data, source, ["model", "constant_ns", "relative"], [])
    constant = data["constant_ns"]
    if type(constant) is not int:
        raise CostModelError(f"{source}: constant_ns is {constant!r}; it must be a whole number of nanoseconds")
    relative = _fraction(data["relative"], "relative")
    return WithMargin(cost_model_from_dict(data["model"], f"{source}: model"), constant, relative)


def _scaled(data: dict[str, Any], source: str) -> ScaledCost:
    _check_fields(data, source, ["model", "factor"], [])
    factor = data["factor"]
    if type(factor) not in (int, float):
        raise CostModelError(f"{source}: factor is {_json_type(factor)}; it must be a number")
    return ScaledCost(cost_model_from_dict(data["model"], f"{source}: model"), factor)


def _erring(data: dict[str, Any], source: str) -> ErringCost:
    _check_fields(data, source, ["model", *RANGES], [])
    model = cost_model_from_dict(data["model"], f"{source}: model")
    return ErringCost(model, **{field: data[field] for field in RANGES})


def _prefill(data: dict[str, Any], source: str) -> PrefillCost:
    _check_fields(data, source, list(PREFILL_COEFFICIENTS), ["name", "source"])
    return PrefillCost(
        name=_name(data, source),
        source=data.get("source", ""),
        **{c: data[c] for c in PREFILL_COEFFICIENTS},
    )


def _pipeline(data: dict[str, Any], source: str) -> PipelineCost:
    _check_fields(data, source, ["stages"], ["name"])
    stages = data["stages"]
    if not isinstance(stages, list):
        raise CostModelError(f"{source}: stages is {_json_type(stages)}; it must be an array of cost models")
    parts = tuple(cost_model_from_dict(stage, f"{source}: stage {k}") for k, stage in enumerate(stages))
    return PipelineCost(_name(data, source), parts)


def _nnls(data: dict[str, Any], source: str) -> NnlsCost:
    _check_fields(data, source, [*PRICES, "tile", "knots", "slopes_fs"], ["name", "source"])
    return NnlsCost(
        name=_name(data, source),
        source=data.get("source", ""),
        tile=data["tile"],
        knots=_array(data, "knots"),
        slopes_fs=_array(data, "slopes_fs"),
        **{price: data[price] for price in PRICES},
    )


def _table(data: dict[str, Any], source: str) -> TableCost:
    _check_fields(data, source, [*AXES, "cells_ns", "beyond_ns", "longest", "lookup"], ["name", "source"])
    cells = _object(data, "cells_ns")
    for axis in AXES:
        if len(_array(data, axis)) > MOST_KNOTS:
            raise CostModelError(f"{source}: {axis} has more than {MOST_KNOTS} knots")
    return TableCost(
        name=_name(data, source),
        **{axis: _array(data, axis) for axis in AXES},
        cells=tuple((quantile, _array(cells, quantile)) for quantile in cells),
        beyond_ns=_array(data, "beyond_ns"),
        longest=data["longest"],
        lookup=data["lookup"],
        source=data.get("source", ""),
    )


def _boosted(data: dict[str, Any], source: str) -> BoostedCost:
    _check_fields(data, source, ["base", "trees"], ["name", "source"])
    base = cost_model_from_dict(data["base"], f"{source}: base")
    if not isinstance(base, NnlsCost):
        raise CostModelError(f"{source}: base is of kind {base.to_dict()['kind']!r}; it must be nnls")
    trees = []
    for number, tree in enumerate(_array(data, "trees")):
        where = f"{source}: tree {number}"
        if not isinstance(tree, dict):
            raise CostModelError(f"{where} is {_json_type(tree)}; it must be an object")
        _check_fields(tree, where, list(Tree._fields), [])
        trees.append(_tree(Tree(*(_array(tree, what) for what in Tree._fields)), where))
    return BoostedCost(_name(data, source), base, tuple(trees), data.get("source", ""))


def _tree(tree: Tree, where: str) -> Tree:
    """Return the tree, unless two nodes have the same child: written out, such a tree doubles with every level."""
    children = [
        child
        for what, *both in zip(tree.inputs, tree.left, tree.right, strict=False)
        if type(what) is int and what >= 0
        for child in both
        if type(child) is int
    ]
    if len(set(children)) < len(children):
        raise CostModelError(f"{where}: two nodes have the same child")
    for child in (*tree.left, *tree.right):
        if type(child) is int and not -1 <= child < len(tree.inputs):
            raise CostModelError(f"{where}: {child} is no node of it")
    return tree


def _residuals(data: Any, source: str) -> ResidualTable:
    if not isinstance(data, dict):
        raise CostModelError(f"{source} is {_json_type(data)}; it must be an object")
    _check_fields(data, source, ["batches", "chunks", "shares_ppm"], [])
    rows = _array(data, "shares_ppm")
    if not all(isinstance(row, list) for row in rows):
        raise CostModelError(f"{source}: shares_ppm must be an array of arrays")
    return ResidualTable(_array(data, "batches"), _array(data, "chunks"), tuple(map(tuple, rows)))


def _with_residuals(data: dict[str, Any], source: str) -> WithResiduals:
    _check_fields(data, source, ["model", "residuals"], [])
    model = cost_model_from_dict(data["model"], f"{source}: model")
    return WithResiduals(model, _residuals(data["residuals"], f"{source}: residuals"))


def _calibrated(data: dict[str, Any], source: str) -> CalibratedCost:
    _check_fields(data, source, ["model", "within", "residuals", "coverage"], [])
    within, residuals, coverage = (_object(data, what) for what in ("within", "residuals", "coverage"))
    if within:
        _check_fields(within, f"{source}: within", list(FEATURES), [])
    return CalibratedCost(
        cost_model_from_dict(data["model"], f"{source}: model"),
        tuple(within[feature] for feature in FEATURES) if within else (),
        tuple((quantile, _residuals(table, f"{source}: residuals")) for quantile, table in residuals.items()),
        tuple((covered, _fraction(share, f"coverage {covered}")) for covered, share in coverage.items()),
    )


READERS: dict[str, Callable[[dict[str, Any], str], CostModel]] = {
    "linear": _linear,
    "with-margin": _with_margin,
    "prefill": _prefill,
    "pipeline": _pipeline,
    "nnls": _nnls,
    "table": _table,
    "boosted": _boosted,
    "with-residuals": _with_residuals,
    "calibrated": _calibrated,
    "scaled": _scaled,
    "erring": _erring,
}

KINDS = tuple(READERS)


def _check_fields(data: dict[str, Any], source: str, needed: list[str], optional: list[str]) -> None:
    known = [*needed, *optional, "kind", "version"]
    for unknown in sorted(data.keys() - set(known)):
        raise CostModelError(f"{source}: unknown field {unknown}{_nearest(unknown, known)}")
    for missing in needed:
        if missing not in data:
            raise CostModelError(f"{source}: {missing} is missing")
    for text in ("name", "source"):
        if not isinstance(data.get(text, ""), str):
            raise CostModelError(f"{source}: {text} is {_json_type(data[text])}; it must be a string")
    if len(data.get("name", "")) > MOST_NAME:
        raise CostModelError(f"{source}: name has more than {MOST_NAME} characters")


def _name(data: dict[str, Any], source: str) -> str:
    """Return the model's own name, or its file's: the same from whatever folder it is asked for."""
    name: str = data.get("name", PurePath(source).name)
    return name


def _array(data: dict[str, Any], field: str) -> tuple[Any, ...]:
    value = data[field]
    if not isinstance(value, list):
        raise CostModelError(f"{field} is {_json_type(value)}; it must be an array")
    return tuple(value)


def _object(data: dict[str, Any], field: str) -> dict[str, Any]:
    value = data[field]
    if not isinstance(value, dict):
        raise CostModelError(f"{field} is {_json_type(value)}; it must be an object")
    return value


def _fraction(text: Any, field: str) -> Fraction:
    try:
        if isinstance(text, str) and FRACTION.fullmatch(text):
            return Fraction(text)
    except ZeroDivisionError:
        pass
    raise CostModelError(f'{field} is {text!r}; it must be a fraction like "1/20"')


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_NAME else f"{text[:MOST_NAME]}..."


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
