"""The sections on where results come from, and how to make them again."""

from __future__ import annotations

import json

from experiments.webreport.parts import MOST_ROWS, Section, Table
from experiments.webreport.reproduce import COST_FILE, SWEEP_FILE, command_of, file_of
from experiments.webreport.sources import Sources
from experiments.webreport.words import DASH

MOST_COMMANDS = 24

MOST_RECORD = 60_000
"""Characters of ``run.json`` that are shown."""


def provenance_section(sources: Sources) -> Section:
    """Return by what code and on what all this was made."""
    made: dict[tuple[str, ...], int] = {}
    for run in sources.described:
        git = run.info.get("git")
        git = git if isinstance(git, dict) else {}
        revision = str(git.get("revision") or "unknown")[:12] + (" and changes" if git.get("dirty") else "")
        known = [str(run.info.get(key, DASH)) for key in ("cost_model_hash", "python", "platform")]
        made[revision, *known] = made.get((revision, *known), 0) + 1
    columns = ("runs", "code", "cost model hash", "Python", "platform")
    table = Table(columns, [(f"{n:,}", *key) for key, n in made.items()], left=len(columns))
    rows = [
        (run.label, run.path.name, DASH if run.seed is None else f"{run.seed}", run.trace, run.trace_hash)
        for run in sources.described[:MOST_ROWS]
    ]
    more = len(sources.described) - MOST_ROWS
    caption = "Runs" + (f", without {more:,} more" if more > 0 else "")
    folded = [Table(("policy", "folder", "seed", "trace", "trace hash"), rows, caption, left=5)]
    listings = []
    if len(sources.described) == 1:
        record = json.dumps(sources.described[0].info, indent=1, ensure_ascii=False)
        listings.append(("The whole record", record[:MOST_RECORD]))
    return Section("Where this comes from", "provenance", tables=[table], folded=folded, listings=listings)


def again_section(sources: Sources) -> Section:
    """Return how to make the runs and sweeps again."""
    listings, text = [], []
    for sweep in sources.sweeps:
        lines = f"# save as {SWEEP_FILE}, then: prefillsim sweep {SWEEP_FILE}\n{file_of(sweep)}"
        listings.append((f"{sweep.path.name}: the experiment", lines))
        if isinstance(sweep.config.get("cost_model"), str) and sweep.config["cost_model"].endswith(".json"):
            text.append(f"Cost models that are files, like {sweep.config['cost_model']}, have to be there too.")
    for run in sources.runs[:MOST_COMMANDS]:
        command, notes = command_of(run)
        listings.append((run.path.name, "\n".join([command, *(f"# {note}" for note in notes)])))
    if any(COST_FILE in listing for _, listing in listings):
        text.append("Cost models that are not shipped are in run.json, from where they can be copied into files.")
    return Section("Make it again", "again", text, listings=listings)
