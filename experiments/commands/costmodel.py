"""``prefillsim costmodel``: what a cost model says, whether it can be relied on, and where shipped ones come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.commands import options as o

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, or a .json file.")]
Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names of shipped models, or .json files.")]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="Measured steps to compare with.", rich_help_panel=o.RUN),
]


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Show, check, compare, plot and make cost models.", no_args_is_help=True)
    for command in (show, check, compare, plot, compose, artefacts):
        group.command(command.__name__)(command)
    app.add_typer(group, name="costmodel")


def show(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Without one, all shipped ones.")] = None,
    seed: o.NoSeed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Show a model's numbers, range and card; without a name, what is shipped."""
    from costmodels.io import load_card, load_cost_model, shipped_models
    from experiments import output
    from experiments.costmodels_shown import MOST_SHOWN, kinds, parameters

    if model is None:
        rows = [_shipped(name, load_card(name), load_cost_model(name).to_dict()) for name in shipped_models()]
        output.keep(out, "costmodels", rows)
        if json:
            output.emit(rows)
            return
        columns = ["name", "kind", "device", "model", "mean error", "worst decile", ""]
        output.table(columns, [[str(v) for v in row.values()] for row in rows], left=4)
        output.say("Errors: on composed shapes held out. Estimated: from data sheets, not from measured kernels.")
        return
    data, card = load_cost_model(model).to_dict(), load_card(model)
    document = {"name": model, "model": data, "card": card}
    output.keep(out, "costmodel", document)
    if json:
        output.emit(document)
        return
    output.say(f"{model}: {kinds(data)}")
    if card:
        output.say(*_card_lines(card))
    numbers = parameters(data)
    output.table(["parameter", "value"], [list(p) for p in numbers[:MOST_SHOWN]], left=1)
    if len(numbers) > MOST_SHOWN:
        output.say(f"... and {len(numbers) - MOST_SHOWN} more; --json prints all")


def check(
    models: Models,
    pairs: Annotated[int, typer.Option("--pairs", min=1, max=10_000_000, help="Random pairs of steps.")] = 100_000,
    seed: o.NoSeed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Certify models: whole, positive times that never fall as work grows; exit status 1 if one fails."""
    from costmodels.io import load_cost_model
    from experiments import output
    from experiments.costmodels_shown import check as certify

    found = [{**certify(load_cost_model(name), pairs), "model": name} for name in models]
    output.keep(out, "costmodel-check", found)
    if json:
        output.emit(found)
    else:
        for f in found:
            output.say(*f["problems"])
            several = f["falls_several_prefills"]
            blemish = f"; with several prefills {several} of {pairs // 5:,}" if several else ""
            verdict = "certified" if f["ok"] else "not certified"
            output.say(f"{f['model']}: {verdict}; {f['falls']} of {pairs:,} random pairs fall{blemish}")
    if not all(f["ok"] for f in found):
        raise typer.Exit(1)


def compare(
    models: Models,
    profile: ProfileFile = None,
    seed: o.NoSeed = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Compare models: their errors on a profile, or else their step times on a grid of shapes."""
    from costmodels.io import load_cost_model
    from costmodels.profile import read_profile
    from experiments import output
    from experiments.costmodels_shown import beyond_range, compare_on_grid, compare_on_profile

    loaded = [load_cost_model(name) for name in models]
    measured = None if profile is None else read_profile(profile)
    with beyond_range() as said:
        rows = compare_on_grid(loaded) if measured is None else compare_on_profile(loaded, measured)
    output.keep(out, "costmodel-compare", rows)
    if json:
        output.emit(rows)
        return
    if measured is None:
        columns = list(rows[0])
        output.table(columns, [[_cell(row[c]) for c in columns] for row in rows], left=0)
    else:
        output.table(
            ["model", "rows", "mean error", "worst decile", "worst", "bias", "predicted too short"],
            [[row["model"], str(row["rows"]), *(f"{row[c]:.2%}" for c in list(row)[2:])] for row in rows],
        )
    output.warn(said)


def plot(models: Models, seed: o.NoSeed = None, out: o.Out = None, json: o.Json = False) -> None:
    """Draw step times over the prefill chunk, the decode batch and the context."""
    from costmodels.io import load_cost_model
    from experiments import output
    from experiments.costmodels_shown import beyond_range, draw
    from experiments.folders import claim

    loaded = [load_cost_model(name) for name in models]
    with beyond_range() as said:
        files: list[Path] = []
        folder = claim(out, "costmodel-plot", lambda part: files.extend(draw(loaded, part)), may_resume=False)
    paths = [str(folder / f.name) for f in files]
    if json:
        output.emit({"out": str(folder), "files": paths})
        return
    output.say(*paths)
    output.warn(said)


def compose(
    kernels: Annotated[
        str,
        typer.Argument(metavar="KERNELS", help="Like nvidia:gpu=h100-sxm,llm=llama-3.1-8b,tp=1 or csv:folder=DIR,..."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.parquet", help="A new file.")],
    seed: o.NoSeed = None,
    json: o.Json = False,
) -> None:
    """Compose a profile table from kernel times, for `prefillsim calibrate`."""
    from costmodels.kernels import compose_profile
    from costmodels.profile import write_profile
    from costmodels.sources import load_kernel_source
    from experiments import output
    from experiments.config import ConfigError

    if out.suffix != ".parquet":
        raise ConfigError(f"--out {out} must end in .parquet")
    if out.exists():
        raise ConfigError(f"{out} exists; give a new file")
    made = compose_profile(load_kernel_source(kernels))
    out.parent.mkdir(parents=True, exist_ok=True)
    profile = write_profile(out, made.frame, {**made.provenance, "kernels": kernels})
    if json:
        output.emit({"out": str(out), "rows": len(profile), **profile.setting, "warnings": profile.warnings})
        return
    output.say(f"{len(profile)} steps of {made.name}: {out}")
    output.warn(profile.warnings)


def artefacts(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="All by default.")] = None,
    seed: o.NoSeed = None,
    out: o.Out = None,
    json: o.Json = False,
) -> None:
    """Make the shipped cost models again, from kernel tables; needs the extra [kernels]."""
    from experiments import output
    from experiments.artefacts import find, write
    from experiments.calibration_report import score_rows
    from experiments.folders import claim

    settings = find(names or [])
    folder = claim(out, "costmodels", lambda _: None, may_resume=False)
    rows: list[dict[str, Any]] = []
    for setting in settings:
        path, made = write(setting, folder)
        rows.append({"file": str(path), "picked": made.picked, "scores": score_rows(made)})
        if not json:
            s = made.scores[made.picked]
            output.say(f"{path}: {made.picked}, mean error {s.mae:.1%}, worst decile {s.worst_decile:.1%}")
    if json:
        output.emit(rows)


def _shipped(name: str, card: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    from experiments.costmodels_shown import kinds

    errors = _errors(card)
    return {
        "name": name,
        "kind": kinds(data),
        "device": card.get("device", "-"),
        "model": card.get("model", "-"),
        "mae": f"{errors['mae']:.1%}" if errors else "-",
        "worst_decile": f"{errors['worst_decile']:.1%}" if errors else "-",
        "estimated": "estimated" if card.get("estimated") else "",
    }


def _card_lines(card: dict[str, Any]) -> list[str]:
    """Return what a card says for people; whatever it lacks, or has in another form than ours, is left out."""
    said = {key: str(value) for key, value in card.items() if isinstance(value, str | int | float)}
    lines = []
    if "device" in said:
        tp = [f"TP {said['tensor_parallel']}"] if "tensor_parallel" in said else []
        setting = ", ".join([said[key] for key in ("dtype",) if key in said] + tp)
        model = f"{said.get('model', 'a model')}{f' ({setting})' if setting else ''} on {said['device']}"
        engine = " ".join(said[k] for k in ("engine", "engine_version") if k in said)
        lines.append(f"{model}{f', {engine}' if engine else ''}{', estimated' if card.get('estimated') else ''}")
    lines += [f"{how} {said[key]}" for how, key in (("from", "source"), ("made by", "command")) if key in said]
    if errors := _errors(card):
        fit = card["fit"]
        lines.append(
            f"held-out errors: {errors['mae']:.2%} on average, {errors['worst_decile']:.2%} in the worst decile, bias "
            f"{errors['bias']:+.2%}, over {fit.get('shapes')} shapes; picked as {fit.get('why')}"
        )
    ranges = card.get("range")
    if isinstance(ranges, dict) and ranges and all(map(_is_range, ranges.values())):
        lines.append("range: " + ", ".join(f"{c} {low:,} to {high:,}" for c, (low, high) in ranges.items()))
    caveats = card.get("caveats")
    return [*lines, *(f"mind: {caveat}" for caveat in (caveats if isinstance(caveats, list) else []))]


def _errors(card: dict[str, Any]) -> dict[str, float]:
    """Return the errors of the estimator that was picked; empty where the card has none, or not as we write them."""
    fit = card.get("fit")
    if not isinstance(fit, dict):
        return {}
    held_out, picked = fit.get("held_out"), fit.get("picked")
    errors = held_out.get(picked) if isinstance(held_out, dict) and isinstance(picked, str) else None
    names = ("mae", "worst_decile", "bias")
    if not isinstance(errors, dict) or not all(_is_number(errors.get(name)) for name in names):
        return {}
    return {name: float(errors[name]) for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1 << 63


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _cell(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"
