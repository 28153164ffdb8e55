"""Cost models by name or from a JSON file, and back to one. Never pickled."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from costmodels.base import CostModel, CostModelError
from costmodels.linear import LinearCost

FORMAT_VERSION = 1


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package."""
    data = resources.files("costmodels") / "data"
    return sorted(f.name.removesuffix(".json") for f in data.iterdir() if f.name.endswith(".json"))


def load_cost_model(name: str) -> CostModel:
    """Load a shipped model by name, or a JSON file by path.

    Raises:
        CostModelError: if there is none, or the file is not a cost model that this version reads.
    """
    path = Path(name)
    if name in shipped_models():
        text = (resources.files("costmodels") / "data" / f"{name}.json").read_text()
    elif path.suffix == ".json" or "/" in name:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise CostModelError(f"cost model {name} cannot be read: {e}") from None
    else:
        near = difflib.get_close_matches(name, shipped_models(), 1, 0)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise CostModelError(f"unknown cost model {name}{hint} (shipped: {', '.join(shipped_models())})")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CostModelError(f"cost model {name} is not JSON: {e}") from None
    return cost_model_from_dict(data, name)


def cost_model_from_dict(data: Any, source: str = "cost model") -> CostModel:
    """Build the model that a ``to_dict`` described.

    Raises:
        CostModelError: if a field is missing, unknown or not valid.
    """
    if not isinstance(data, dict) or data.get("kind") != "linear":
        kind = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise CostModelError(f"{source}: kind is {kind!r}; this version reads: linear")
    if data.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        raise CostModelError(
            f"{source}: format version {data['version']!r} is not {FORMAT_VERSION}, which this version reads"
        )
    fields = {"step_ns", "decode_ns", "per_decode_ns", "prefill_ns", "per_token_ns"}
    known = fields | {"kind", "name", "version", "residual_quantiles_ns", "source"}
    for missing in sorted(fields - data.keys()):
        raise CostModelError(f"{source}: {missing} is missing")
    for unknown in sorted(data.keys() - known):
        near = difflib.get_close_matches(unknown, known, 1)
        raise CostModelError(f"{source}: unknown field {unknown}" + (f"; did you mean {near[0]}?" if near else ""))
    quantiles = data.get("residual_quantiles_ns", {})
    if not isinstance(quantiles, dict) or not all(isinstance(v, int) and v >= 0 for v in quantiles.values()):
        raise CostModelError(f"{source}: residual_quantiles_ns must map quantiles to whole nanoseconds")
    return LinearCost(
        name=str(data.get("name", source)),
        residual_quantiles=quantiles,
        **{f.removesuffix("_ns"): data[f] for f in sorted(fields)},
    )


def save_cost_model(model: CostModel, path: Path) -> None:
    """Write ``model`` as JSON."""
    path.write_text(json.dumps({"version": FORMAT_VERSION, **model.to_dict()}, indent=2) + "\n")
