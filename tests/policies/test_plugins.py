"""A user's file of policies: what it may contain, and what is said where it may not."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from costmodels import LinearCost
from policies import ALIASES, PolicyError, PolicySpec, load_plugin, parse_policy, registry
from sim.engine import simulate
from sim.objectives import Objectives
from tests.engine.compare import assert_same_run
from traces.synthetic import generate

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(source: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("from policies import *\n" + dedent(source))
        return path

    return put


MINE = """
@register
class Mine(Ordering):
    '''Mine.'''
    name = "mine"
    weight: int = {weight}
    def key(self, request):
        return self.weight * request.prompt_tokens
"""

USER_FCFS = """
@register
class UserFcfs(Ordering):
    '''Oldest first, as a user would write it.'''
    name = "user-fcfs"
    def key(self, request):
        return request.arrival_ns

@register
class UserSjf(Ordering):
    '''Shortest first, by looking at the whole queue.'''
    name = "user-sjf"
    def choose(self, waiting, now_ns):
        return min(waiting, key=lambda r: (r.uncached_tokens, r.arrival_ns, r.number))

@register
class UserFixed(Chunking):
    '''At most so many tokens.'''
    name = "user-fixed"
    size: int = 512
    def grant(self, batch):
        return Grant(self.size)

@register
class UserLimit(Admission):
    '''At most so many that wait.'''
    name = "user-limit"
    limit: int = 5
    def admit(self, request, load):
        if load.n_waiting < self.limit:
            return ACCEPT
        return Decision("reject", f"queue-limit: {load.n_waiting} requests wait, {self.limit} may")
"""


@pytest.mark.parametrize(
    ("mine", "builtin"),
    [
        ("user-fcfs+user-fixed:size=256", "fcfs+fixed:chunk=256"),
        ("user-fcfs+deadline-fill", "sloweave"),
        ("user-sjf+user-fixed:size=100+user-limit:limit=9", "srjf-static+fixed:chunk=100+queue-limit:limit=9"),
    ],
)
def test_a_user_s_policy_is_as_good_as_a_built_in_one(write: Write, mine: str, builtin: str) -> None:
    load_plugin(write(USER_FCFS))
    trace = generate("mixed", seed=3, n=150, rate=400)
    goals = Objectives.parse("ttft:1000,tpot_p99:25")
    cost = LinearCost()
    assert_same_run(
        simulate(trace, parse_policy(mine), cost, objectives=goals),
        simulate(trace, parse_policy(builtin), cost, objectives=goals),
    )


def test_its_parts_are_known_by_name(write: Write) -> None:
    added = load_plugin(write(USER_FCFS))
    assert {(p.kind, p.name) for p in added} == {
        ("ordering", "user-fcfs"),
        ("ordering", "user-sjf"),
        ("chunking", "user-fixed"),
        ("admission", "user-limit"),
    }
    assert all(registry.find(p.kind, p.name) is p for p in added)
    spec = PolicySpec.parse("user-fcfs+user-fixed:size=3")
    assert PolicySpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(PolicyError, match=r"unknown ordering user-fcf; did you mean user-fcfs\?"):
        PolicySpec.parse("user-fcf+full")


def test_loading_again_replaces(write: Write) -> None:
    path = write(MINE.format(weight=1))
    load_plugin(path)
    write(MINE.format(weight=2))
    load_plugin(path)
    assert PolicySpec.parse("mine+full").ordering.params == {"weight": 2}
    write(MINE.format(weight=2).replace('"mine"', '"renamed"'))
    load_plugin(path)
    assert "mine" not in registry.parts("ordering")
    assert "renamed" in registry.parts("ordering")


def test_a_file_that_fails_changes_nothing(write: Write) -> None:
    path = write(MINE.format(weight=1))
    load_plugin(path)
    before = {kind: registry.parts(kind) for kind in registry.KINDS}
    modules = set(sys.modules)
    write(MINE.format(weight=2) + USER_FCFS + "\n1 / 0\n")
    with pytest.raises(PolicyError):
        load_plugin(path)
    assert {kind: registry.parts(kind) for kind in registry.KINDS} == before
    assert set(sys.modules) == modules
    assert parse_policy("mine+full").ordering.params() == {"weight": 1}


def test_files_of_the_same_name_are_told_apart(write: Write) -> None:
    load_plugin(write(MINE.format(weight=1), "a/mine.py"))
    with pytest.raises(
        PolicyError, match=r"b/mine\.py, line 3: Mine: the ordering mine exists already, in .*a/mine\.py"
    ):
        load_plugin(write(MINE.format(weight=2), "b/mine.py"))
    load_plugin(write(MINE.format(weight=2).replace('"mine"', '"other"'), "b/mine.py"))
    assert parse_policy("mine+full").ordering.params() == {"weight": 1}
    assert parse_policy("other+full").ordering.params() == {"weight": 2}


def test_nothing_is_left_beside_the_file(write: Write) -> None:
    path = write(MINE.format(weight=1))
    load_plugin(path)
    assert [p.name for p in path.parent.iterdir()] == ["mine.py"]


def ordering(body: str, name: str = 'name = "mine"', base: str = "Ordering") -> str:
    return f"@register\nclass Mine({base}):\n    '''Mine.'''\n    {name}\n    {body}\n    def key(self, r): return 0\n"


MISTAKES = {
    "syntax": ("def f(:\n    pass\n", "mine.py, line 2 is not valid Python: "),
    "null bytes": ("\0", "is not valid Python"),
    "import": (
        "import no_such_module\n",
        "line 2: does not run: ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "error": ("x = 1\ndef f():\n    return x / 0\nf()\n", "line 4: does not run: ZeroDivisionError: division by zero"),
    "exit": ("raise SystemExit(0)\n", "line 2: does not run: SystemExit: 0"),
    "nothing": ("x = 1\n", "mine.py registers no policy part; put @register on a class"),
    "unregistered": ("class Mine(Ordering):\n    name = 'mine'\n", "registers no policy part"),
    "no name": (ordering("", name="pass"), "line 2: Mine needs a name like name = 'my-ordering'"),
    "inherited name": (
        "from policies.ordering.fcfs import Fcfs\n@register\nclass Mine(Fcfs):\n    pass\n",
        "Mine needs a name like name = 'my-ordering'",
    ),
    "name with a plus": (ordering("", name="name = 'a+b'"), "Mine needs a name like"),
    "name with a digit first": (ordering("", name="name = '2lane'"), "Mine needs a name like"),
    "name that is no text": (ordering("", name="name = 3"), "Mine needs a name like"),
    "built-in's name": (ordering("", name="name = 'fcfs'"), "Mine: the ordering fcfs exists already, in "),
    "alias": (ordering("", name="name = 'sloweave'"), f"taken by the alias sloweave = {ALIASES['sloweave']}"),
    "no base": (
        ordering("", base="object"),
        "Mine must be a subclass of exactly one of Ordering, Chunking and Admission",
    ),
    "Part": (ordering("", base="Part"), "exactly one of Ordering, Chunking and Admission; it is one of none of them"),
    "two bases": (ordering("", base="Ordering, Chunking"), "it is one of Ordering and Chunking"),
    "function": ("@register\ndef mine(r):\n    return 0\n", "mine must be a subclass of exactly one of"),
    "kind": (ordering("kind = 'chunking'"), "Mine: kind is 'chunking'; leave it to Ordering"),
    "no default": (ordering("weight: int"), "Mine: parameter weight needs a default, so that mine alone works"),
    "default first": (ordering("a: int = 1\n    b: int"), "Mine: its parameters cannot be used: non-default argument"),
    "mutable default": (ordering("a: list = []"), "Mine: its parameters cannot be used: mutable default"),
    "undefined type": (ordering("a: 'Nope' = 1"), "Mine: a parameter has a type that is not defined"),
    "foreign type": (
        "import threading\n" + ordering("a: threading.Event = None"),
        "Mine: its parameters cannot be used: Unable to generate pydantic-core schema for",
    ),
    "reserved": (ordering("version: int = 2"), "Mine: version cannot be a parameter, for it has a meaning of its own"),
    "method as parameter": (ordering("choose: int = 2"), "Mine: choose cannot be a parameter"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_the_file_and_what_is_wrong(case: str, write: Write) -> None:
    source, message = MISTAKES[case]
    path = write(source)
    with pytest.raises(PolicyError, match=re.escape(message)) as e:
        load_plugin(path)
    assert str(e.value).startswith(f"plug-in {path}")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("name", "message"), [("none.py", "No such file"), (".", "Is a directory"), ("loop.py", "Too many levels")]
)
def test_a_path_that_cannot_be_read(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(PolicyError, match=f"plug-in .* cannot be read: {message}"):
        load_plugin(tmp_path / name)


@pytest.mark.parametrize(
    ("body", "text", "message"),
    [
        ("a: list[int] = None", "mine:a=3", "ordering mine: a=3: input should be a valid list"),
        ("a: float = 1.0", "mine:a=nan", "ordering mine: a=nan cannot be written in a policy string"),
        (
            "a: int = 1\n    def __post_init__(self): 1 / self.a",
            "mine:a=0",
            "ordering mine cannot be made: ZeroDivision",
        ),
        (
            "a: int = 1\n    def __post_init__(self):\n        if self.a > 5: raise ValueError('a is too much')",
            "mine:a=6",
            "ordering mine: a is too much",
        ),
    ],
)
def test_a_parameter_that_the_part_cannot_take(body: str, text: str, message: str, write: Write) -> None:
    load_plugin(write(ordering(body)))
    with pytest.raises(PolicyError, match=re.escape(message)):
        PolicySpec.parse(f"{text}+full")


def test_text_that_a_policy_string_cannot_carry_is_refused_in_json_too(write: Write) -> None:
    load_plugin(write(ordering("a: str = 'x'")))
    data = PolicySpec.parse("mine:a=y+full").to_dict()
    for text in ("a+b", "a,b", " a", ""):
        data["ordering"]["params"] = {"a": text}
        with pytest.raises(PolicyError, match=re.escape(f"a={text!r} cannot be written in a policy string")):
            PolicySpec.from_dict(data)
