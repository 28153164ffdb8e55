"""The packages have names that others use too: ours must be the ones that are imported."""

import importlib
import pkgutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["traces", "costmodels", "policies", "sim", "experiments", "gpu_runner"])
def test_packages_import_from_this_repository(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__file__ is not None
    assert Path(package.__file__) == ROOT / name / "__init__.py"
    assert package.__doc__
    folders = {f"{name}.{m.name}" for m in pkgutil.iter_modules(package.__path__) if m.ispkg}
    on_disk = {f"{name}.{p.parent.name}" for p in (ROOT / name).glob("*/__init__.py")}
    assert folders == on_disk
