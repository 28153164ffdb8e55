"""Data stays data: nothing that is read can run code or choose where results go."""

from __future__ import annotations

import ast
import re
import unicodedata
from pathlib import Path

import pytest

from experiments.config import Config, ConfigError
from experiments.draft import Draft
from tests.mutation.mutant import ROOT

PACKAGES = ("traces", "costmodels", "policies", "sim", "gpu_runner", "experiments")

LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
"""Modules that make objects of whatever data says."""

CALLS = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "joblib.load", "torch.load", "pd.read_pickle", "eval"}

SUSPECT = {"exec", *(call.rpartition(".")[2] for call in CALLS)}

WORDS = re.compile(rf"\b({'|'.join(sorted(LOADERS | SUSPECT))})\b")
"""Without one of these words no text has such a call, once its identifiers are spelt as Python spells them."""

MAY_EXECUTE = {"policies/registry.py", "costmodels/boosted.py"}
"""A user's own plug-in, which is code; and the text of trees, made of whole numbers that have been checked."""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_no_module_loads_code_from_data() -> None:
    executing = set()
    for path in sources():
        where, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if not WORDS.search(unicodedata.normalize("NFKC", text)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.partition(".")[0] for alias in node.names}
                module = getattr(node, "module", None)
                assert not LOADERS & (names | {str(module).partition(".")[0]}), where
            elif isinstance(node, ast.Call):
                if getattr(node.func, "attr", getattr(node.func, "id", "")) not in SUSPECT:
                    continue
                called = ast.unparse(node.func)
                assert called not in CALLS, f"{where} calls {called}"
                if called == "exec":
                    executing.add(where)
                if called.endswith("np.load"):
                    assert all(k.arg != "allow_pickle" for k in node.keywords), where
                if called.endswith(").load") and "yaml" in called:
                    pytest.fail(f"{where} calls {called}")
    assert executing == MAY_EXECUTE


@pytest.mark.parametrize("name", ["../x", "/x", "..", ".", "", "a/b", "a\\b", "a\nb", "a\n", "-x", ".x", "a\0b", "~"])
def test_names_cannot_leave_the_results_folder(name: str) -> None:
    """Results go to ``runs/NAME`` where ``--out`` does not say otherwise; cells below are called by their hash."""
    draft = Draft()
    draft.put("name", name, "here")
    with pytest.raises(ConfigError, match=r"here: name is .*letters, digits, dots, dashes and underscores"):
        draft.finish()


@pytest.mark.parametrize("name", ["a", "a..b", "2026-01-01", "table3.1"])
def test_plain_names_stay_in_it(name: str) -> None:
    folder = (Path("runs") / Config(name=name).name).resolve()
    assert folder.parent == Path("runs").resolve()
