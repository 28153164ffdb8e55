"""``prefillsim policies``: what exists, its parameters and source; certify one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.commands import options as o

SHOWN = 5
"""Problems of one part that are printed."""


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="List, show and check policies.", no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group, name="policies")


def list_(plugin: o.Plugins = None, seed: o.NoSeed = None, out: o.DocumentOut = None, json: o.Json = False) -> None:
    """List orderings, chunkings, admissions and aliases."""
    from experiments import output
    from experiments.catalogue import catalogue, signature
    from policies.registry import ALIASES

    _load(plugin)
    rows = catalogue()
    document = {"parts": rows, "aliases": ALIASES}
    output.keep(out, "policies", document)
    if json:
        output.emit(document)
        return
    columns = ["kind", "name and defaults", "what it does", "source"]
    output.table(columns, [[r["kind"], signature(r), r["summary"], r["source"]] for r in rows], left=4)
    output.table(["alias", "stands for"], [[name, text] for name, text in ALIASES.items()], left=2)
    output.say("A policy is ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]], or an alias.")


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A part, an alias or a whole policy.")],
    plugin: o.Plugins = None,
    seed: o.NoSeed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Show the parameters and the source of a part, or of each part of a policy."""
    from experiments import output

    _load(plugin)
    policy, rows = _find(name)
    document = {"name": name, "policy": policy, "parts": rows}
    output.keep(out, "policy", document)
    if json:
        output.emit(document)
        return
    if policy is not None:
        output.say(f"{name} = {policy}")
    for row in rows:
        output.say(
            f"{row['kind']} {row['name']}, version {row['version']}: {row['summary']}", f"source: {row['source']}"
        )
        if row["parameters"]:
            lines = [
                [p["name"], "-" if p["default"] is None else str(p["default"]), p["doc"]] for p in row["parameters"]
            ]
            output.table(["parameter", "default", "what it means"], lines, left=3)


def check(
    target: Annotated[str, typer.Argument(metavar="FILE.py|POLICY", help="A file of your own, or a policy.")],
    plugin: o.Plugins = None,
    cost_model: o.CostModel = None,
    seed: o.Seed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Certify a policy: exit status 1 and what is wrong if it fails."""
    from costmodels.io import load_cost_model
    from experiments import output
    from experiments.certify import certify

    _load(plugin)
    certificates = certify(target, None if cost_model is None else load_cost_model(cost_model), seed or 0)
    ok = all(c.ok for c in certificates)
    checked = [{"subject": c.subject, "policy": c.policy, "ok": c.ok, "problems": c.problems} for c in certificates]
    document = {"target": target, "ok": ok, "checked": checked}
    output.keep(out, "certificate", document)
    if json:
        output.emit(document)
    else:
        for c in certificates:
            output.say(f"{c.subject}: " + ("passes" if c.ok else "fails"), *(f"  {p}" for p in c.problems[:SHOWN]))
            if len(c.problems) > SHOWN:
                output.say(f"  and {len(c.problems) - SHOWN} more (--json has all)")
    if not ok:
        raise typer.Exit(1)


def _load(plugins: list[str] | None) -> None:
    from experiments.cells import load_plugins

    load_plugins(tuple(Path(p) for p in plugins or ()))


def _find(name: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the policy string that ``name`` stands for, if it is a whole policy, and its parts."""
    from experiments.catalogue import describe_part
    from policies.registry import ALIASES, KINDS, find, parts
    from policies.spec import PolicySpec

    known = [part for kind in KINDS for part_name, part in parts(kind).items() if part_name == name]
    if known:
        return None, [describe_part(part) for part in known]
    spec = PolicySpec.parse(name)
    given = [(kind, getattr(spec, kind)) for kind in KINDS if getattr(spec, kind) is not None]
    rows = []
    for kind, part in given:
        row = describe_part(find(kind, part.name))
        for parameter in row["parameters"]:
            parameter["value"] = part.params[parameter["name"]]
        rows.append(row)
    return ALIASES.get(name, str(spec)), rows
