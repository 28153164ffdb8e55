"""Cost models: how long a step takes."""

from costmodels.base import CostModel, CostModelError
from costmodels.io import load_cost_model, save_cost_model, shipped_models
from costmodels.linear import LinearCost
from costmodels.margin import with_margin

__all__ = [
    "CostModel",
    "CostModelError",
    "LinearCost",
    "load_cost_model",
    "save_cost_model",
    "shipped_models",
    "with_margin",
]
