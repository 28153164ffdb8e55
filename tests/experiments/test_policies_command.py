"""``prefillsim policies``: everything registered is listed with its parameters, and certificates can be refused."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from experiments.catalogue import catalogue, describe_part, signature
from policies.registry import ALIASES, KINDS, find, parts
from policies.spec import PolicySpec

Cli = Callable[..., Any]

HEAD = "from policies import Admission, Chunking, Decision, Grant, Ordering, register\n\n@register\n"


def test_every_part_is_listed_with_all_its_parameters(cli: Cli) -> None:
    document = cli("policies", "list", "--json").json
    listed = {(row["kind"], row["name"]): row for row in document["parts"]}
    assert listed.keys() == {(kind, name) for kind in KINDS for name in parts(kind)}
    for (kind, name), row in listed.items():
        part = find(kind, name)
        assert [p["name"] for p in row["parameters"]] == [f.name for f in fields(part) if f.init]  # type: ignore[arg-type]
        assert {p["name"]: p["default"] for p in row["parameters"]} == part().params()
        assert row["source"] == part.source
    assert document["aliases"] == ALIASES
    shown = cli("policies", "list").out
    assert all(name in shown for name in [*ALIASES, *(name for kind in KINDS for name in parts(kind))])


def test_every_parameter_that_comes_with_the_package_is_explained() -> None:
    bare = [
        f"{row['name']}: {p['name']}"
        for row in catalogue()
        if find(row["kind"], row["name"]).__module__.startswith("policies.")
        for p in row["parameters"]
        if not p["doc"]
    ]
    assert bare == []


def test_a_signature_is_a_policy_string_of_the_defaults() -> None:
    for row in catalogue():
        if all(p["default"] not in (None, "") for p in row["parameters"]):
            text = {"ordering": "{}+full", "chunking": "fcfs+{}", "admission": "fcfs+full+{}"}[row["kind"]]
            spec = PolicySpec.parse(text.format(signature(row)))
            assert getattr(spec, row["kind"]).params == find(row["kind"], row["name"])().params()


def test_a_part_an_alias_and_a_policy_can_be_shown(cli: Cli) -> None:
    assert "C_max" in cli("policies", "show", "deadline-fill").out
    assert cli("policies", "show", "sloweave").out.startswith("sloweave = fcfs+deadline-fill\n")
    document = cli("policies", "show", "sloweave:cap=512", "--json").json
    assert document["policy"] == "fcfs+deadline-fill:cap=512"
    (cap,) = (p for part in document["parts"] for p in part["parameters"] if p["name"] == "cap")
    assert (cap["default"], cap["value"]) == (4096, 512)


def test_a_part_without_source_code_is_described_without_explanations() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "from policies.base import Ordering\nfrom dataclasses import dataclass\n@dataclass\nclass Odd(Ordering):\n"
        "    name = 'odd'\n    a: int = 3\n",
        namespace,
    )
    assert describe_part(namespace["Odd"])["parameters"] == [{"name": "a", "default": 3, "doc": ""}]


@pytest.mark.parametrize("policy", [*ALIASES, "edf+fixed:chunk=64+queue-limit:limit=50"])
def test_policies_that_come_with_the_package_pass(cli: Cli, policy: str) -> None:
    done = cli("policies", "check", policy)
    assert done.code == 0, done.out
    assert done.out == f"{policy}: passes\n"


GOOD = (
    HEAD
    + "class Last(Ordering):\n    'The last first.'\n    name = 'cmd-last'\n    source = 'test'\n"
    + ("    def key(self, request):\n        return -request.arrival_ns\n")
)

BROKEN = (
    HEAD
    + "class Broken(Chunking):\n    'Divides by zero.'\n    name = 'cmd-broken'\n    source = 'test'\n"
    + ("    def grant(self, batch):\n        return Grant(1 // 0)\n")
)

CLOSED = (
    HEAD
    + "class Closed(Admission):\n    'Lets nobody in.'\n    name = 'cmd-closed'\n    source = 'test'\n"
    + ("    def admit(self, request, load):\n        return Decision('reject', 'closed')\n")
)


@pytest.mark.parametrize(
    ("text", "subject", "problem"),
    [
        (GOOD, "ordering cmd-last", None),
        (BROKEN, "chunking cmd-broken", "ZeroDivisionError"),
        (CLOSED, "admission cmd-closed", "turned away"),
    ],
)
def test_a_file_of_ones_own_is_certified_or_refused(
    cli: Cli, tmp_path: Path, text: str, subject: str, problem: str | None
) -> None:
    (tmp_path / "mine.py").write_text(text)
    document = cli("policies", "check", "mine.py", "--json")
    (checked,) = document.json["checked"]
    assert checked["subject"] == subject
    assert checked["ok"] is document.json["ok"] is (problem is None)
    assert document.code == (0 if problem is None else 1)
    assert problem is None or any(problem in sentence for sentence in checked["problems"])
    shown = cli("policies", "check", "mine.py").out
    assert shown.startswith(f"{subject}: {'passes' if problem is None else 'fails'}\n")


def test_a_plugins_part_can_be_named_in_policies(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD.replace("cmd-last", "cmd-used"))
    assert "cmd-used" in cli("policies", "list", "--plugin", "mine.py").out
    assert cli("policies", "check", "cmd-used+full", "--plugin", "mine.py").code == 0
    command = ["simulate", "--workload", "chat", "--limit", "10", "-p", "cmd-used+full", "--plugin", "mine.py"]
    assert cli(*command, "--json").json["summary"]["finished"] == 10


def test_a_file_that_is_no_plugin_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = (\n")
    done = cli("policies", "check", "mine.py")
    assert done.code == 2
    assert "mine.py, line 1" in done.err
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert "registers no policy part" in cli("policies", "check", "mine.py").err
