"""What the documents say is what the code does: generated pages, examples, links, and names."""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from experiments.cli import main, make_app
from experiments.documents import pages
from experiments.documents_policies import EXAMPLES, allowed
from experiments.documents_text import anchor
from policies.registry import ALIASES, KINDS, find, parts
from policies.spec import PolicySpec
from sim.objectives import Objectives
from tests.shell_examples import Example, commands_in, examples_of, inline_commands, toml_examples
from traces.synthetic import find_workload

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SHOWN = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]

# The reference of commands shows how they are called in general, not examples.
EXAMPLES_SHOWN = [
    e for path in SHOWN if path.name != "cli.md" for e in examples_of(path, path.relative_to(ROOT).as_posix())
]

PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(\.\w+)?$")

SMALL = {"compare": ["--limit", "6", "--seeds", "1", "--jobs", "1"], "simulate": ["--limit", "6"]}
"""Options that make a command cheap, after its own."""

CHEAP = {"policies", "trace", "report", "timeline"}
"""Commands that are cheap as they are."""


@cache
def root() -> Any:
    return typer.main.get_command(make_app())


made = cache(pages)


def command_of(argv: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return the command that arguments name, and what is left of them."""
    command = root()
    rest = list(argv)
    while hasattr(command, "commands"):
        assert rest, "a group is not a command"
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    return command, rest


def options_of(command: Any) -> set[str]:
    return {"--help"} | {name for p in command.params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("name", ["cli.md", "findings.md", "papers.md", "policies.md"])
def test_generated_pages_are_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == made()[name], f"docs/{name} is not what the code says: run make docs"


def test_the_reference_has_every_option_of_every_command() -> None:
    """Told from the parser, not from what the page is made of."""
    text = made()["cli.md"]
    shared, *sections = re.split(r"^## `prefillsim ", text[text.index("## Shared options") :], flags=re.MULTILINE)
    found = dict(section.split("`", 1) for section in sections)
    known: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for key, sub in command.commands.items():
                walk(sub, f"{name} {key}".strip())
        else:
            shown = [p for p in command.params if not getattr(p, "hidden", False) and p.opts[0].startswith("--")]
            known[name] = {p.opts[0] for p in shown} - {"--help"}

    walk(root(), "")
    assert set(found) == set(known)
    for name, options in known.items():
        usage = found[name].replace("[OPTIONS]", "")
        assert set(re.findall(r"(?<!\w)`(--[\w-]+)", usage)) == options, name
        of_many = usage.partition("[Shared options]")[2]
        for option in re.findall(r"`(--[\w-]+)", of_many):
            assert f"| `{option}" in shared


def test_the_catalogue_has_every_part_and_its_defaults() -> None:
    """Told from objects, not from what the page is made of."""
    text = made()["policies.md"]
    sections = dict(re.findall(r"^### (\w+ `[\w-]+`)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    shipped = {(k, n): p for k in KINDS for n, p in parts(k).items() if p.__module__.startswith("policies.")}
    assert set(sections) == {f"{kind} `{name}`" for kind, name in shipped}
    for (kind, name), part in shipped.items():
        rows = re.findall(r"^\| `(\w+)` \| (`?)(.*?)\2 \| (.+?) \| .+ \|$", sections[f"{kind} `{name}`"], re.MULTILINE)
        shown = {row[0]: row[2].replace("\\|", "|") for row in rows}
        assert set(shown) == set(part().params())
        given = {key: value for key, value in shown.items() if value not in ("–", "empty")}
        assert type(part())(**given) == part()
        assert all(part().params()[key] in (None, "") for key in set(shown) - set(given))
    for alias, text_of in ALIASES.items():
        assert f"| `{alias}` | `{text_of}` |" in text


def test_what_a_parameter_allows_is_what_is_refused() -> None:
    from typing import Annotated, Literal

    from annotated_types import Ge, Gt, Le

    assert allowed(Annotated[int, Ge(1), Le(9)]) == "whole number ≥ 1 ≤ 9"
    assert allowed(Annotated[float, Gt(0)] | None) == "number > 0"
    assert allowed(Literal["a", "b"]) == "`a` or `b`"
    assert allowed(bool) == "`true` or `false`"


def test_chosen_examples_are_of_parts_that_exist() -> None:
    for kind, name in EXAMPLES:
        find(kind, name)


def test_commands_are_found_where_they_are() -> None:
    assert list(commands_in("prefillsim report a -o b   # and so on")) == [("report", "a", "-o", "b")]
    assert list(commands_in("srun prefillsim sweep x.toml && echo")) == [("sweep", "x.toml")]
    assert list(commands_in('sbatch --wrap "prefillsim sweep x --resume"')) == [("sweep", "x", "--resume")]
    assert list(commands_in("- run: prefillsim regress a > b")) == [("regress", "a")]
    assert not list(commands_in("pip install 'prefillsim[gpu]'"))
    assert len(EXAMPLES_SHOWN) > 50


@pytest.mark.parametrize("example", EXAMPLES_SHOWN, ids=str)
def test_commands_shown_parse(example: Example) -> None:
    """Command, options, and values as far as they can be read without running anything."""
    command, rest = command_of(example.argv)
    given = [token for token in rest if token != "..."]
    unknown = {token.partition("=")[0] for token in given if re.match(r"--?[a-zA-Z]", token)} - options_of(command)
    assert not unknown
    if len(given) < len(rest):
        return
    read = command.make_context(example.argv[0], list(given)).params
    if read.get("slo"):
        Objectives.parse(read["slo"])
    if read.get("workload"):
        find_workload(read["workload"])
    policies = read.get("policy") or ()
    for policy in [policies] if isinstance(policies, str) else policies:
        if not read.get("plugin") and not PLACEHOLDER.match(policy):
            PolicySpec.parse(policy)


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.name)
def test_commands_named_in_prose_exist(path: Path) -> None:
    """Where a sentence or table names one, ``show|check`` meaning either."""
    for text in inline_commands(path):
        if text.startswith("-"):
            continue
        command = root()
        for word in text.split():
            if not hasattr(command, "commands"):
                break
            choices = word.strip(",.").split("|")
            assert set(choices) <= set(command.commands), f"{path.name}: prefillsim {text}"
            command = command.commands[choices[0]]
        named = set(re.findall(r"(?<!\S)(--[a-z][\w-]*)", text))
        assert hasattr(command, "commands") or named <= options_of(command), f"{path.name}: prefillsim {text}"


def runnable() -> Iterator[Any]:
    """Yield each block's commands up to the first that needs what nobody has made."""
    blocks: dict[tuple[str, int], list[Example]] = {}
    for example in EXAMPLES_SHOWN:
        blocks.setdefault((example.document, example.block), []).append(example)
    seen = set()
    for (document, line), block in blocks.items():
        key = tuple(e.argv for e in block)
        if key not in seen and any(cheap(e) for e in block):
            seen.add(key)
            yield pytest.param([e for e in block if cheap(e)], id=f"{document}:{line}")


def cheap(example: Example) -> bool:
    argv = example.argv
    if "..." in argv or any(PLACEHOLDER.match(token) for token in argv):
        return False
    return argv[0] in CHEAP or (argv[0] in SMALL and "--workload" in argv)


@pytest.mark.parametrize("block", list(runnable()))
def test_cheap_commands_run(
    block: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a few requests, one after another; those whose files are the reader's own are left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.figure.write_figure", lambda comparison, folder: [])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for example in block:
        _, rest = command_of(example.argv)
        files = [t for t in rest if re.search(r"\.\w{2,7}$|^runs/", t) and not t.startswith("-")]
        written = {rest[k + 1] for k, token in enumerate(rest[:-1]) if token in ("-o", "--out", "--svg")}
        if any(not Path(f).exists() for f in set(files) - written):
            continue
        code = main([*example.argv, *SMALL.get(example.argv[0], [])])
        assert code == 0, f"{example}\n{capsys.readouterr().err}"


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=f"{p.name}:{line}") for p in SHOWN for line, text in toml_examples(p)]
)
def test_files_shown_are_experiments(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their runs can be listed; tolerances are for `regress`."""
    monkeypatch.chdir(tmp_path)
    Path("shown.toml").write_text(text.partition("[tolerance]")[0])
    assert main(["sweep", "shown.toml", "--dry-run"]) == 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, section = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), f"{path.name} links to {target}"
        if section and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert section in {anchor(h) for h in headings}, f"{path.name} links to {target}"


def test_every_page_and_notebook_is_in_the_index() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    listed = set(re.findall(r"^\| \[[\w.-]+\]\(([^)]+)\)", text, re.MULTILINE))
    pages_there = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert listed == pages_there | {f"../notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.py")}


def test_concepts_name_what_exists() -> None:
    """Every dotted name of ours can be imported, and is defined in the file that it links to."""
    text = (ROOT / "docs" / "concepts.md").read_text()
    named = re.findall(
        r"\[`((?:traces|costmodels|policies|sim|gpu_runner|experiments)\.[\w.]+)`\]\(\.\./([^)]+)\)", text
    )
    assert len(named) > 30
    for name, file in named:
        module = file.removesuffix(".py").replace("/", ".")
        assert name == module or name.startswith(f"{module}."), name
        found: Any = importlib.import_module(module)
        for attribute in name[len(module) + 1 :].split(".") if name != module else []:
            assert hasattr(found, attribute), name
            found = getattr(found, attribute)
