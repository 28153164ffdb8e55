"""The packages have names that others use too: ours must be the ones that are imported."""

import ast
import importlib
import pkgutil
import tomllib
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


def _imports_near_vllm(path: Path) -> set[str]:
    """Return what a file imports that has the name in it at all; to parse all files takes seconds."""
    found: set[str] = set()
    text = path.read_text()
    if "vllm" not in text:
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_two_files_alone_touch_vllm_s_scheduler() -> None:
    """What vLLM calls not public is reached for in one place, which a new release can be held against."""
    touching = {
        path.relative_to(ROOT).as_posix()
        for package in ("traces", "costmodels", "policies", "sim", "gpu_runner", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if any(name == "vllm.v1" or name.startswith("vllm.v1.") for name in _imports_near_vllm(path))
    }
    assert touching == {"gpu_runner/hooks.py", "gpu_runner/oracle.py"}


def test_all_packages_are_installed() -> None:
    """They are listed one by one, since the top-level folders are packages too."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    tops = ("traces", "costmodels", "policies", "sim", "gpu_runner", "experiments")
    on_disk = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for top in tops
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert listed - {"costmodels.data"} == on_disk - {"costmodels.data"}
