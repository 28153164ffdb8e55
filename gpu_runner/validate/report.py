"""The report of a validation: one HTML file that holds all, its pictures as PNG, and its numbers as JSON."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_runner.validate.sections import Grid, Section
from sim.store import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HTML, JSON = "report.html", "report.json"

Canvas = Callable[[float, float], AbstractContextManager["Figure"]]
"""Makes a figure of the given width and height in inches."""

VERDICTS = {True: "within tolerance", False: "out of tolerance", None: "not judged"}

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #555; padding-bottom: .3rem; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 2px solid #999; }
.good { color: #00664b; } .bad { color: #b03a00; font-weight: 600; } .none { color: #666; }
figure { margin: 1.4rem 0; } img { max-width: 100%; } figcaption { color: #444; font-size: .92rem; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.35; }
.tag { display: inline-block; min-width: 2.2rem; font-weight: 700; color: #0072b2; } nav li { list-style: none; }
nav ul { padding: 0; } dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.5rem; }
"""

DEFINITIONS = {
    "L1, L2, L3": "Three questions, each asked alone: is a step's time right (L1), is the schedule right if the clock "
    "is the engine's own (L2), and are latencies right when everything is simulated (L3).",
    "error": "simulated ÷ measured − 1; for step times predicted ÷ measured − 1.",
    "engine's spread": "Standard deviation over at least three repeats on the engine, relative to their mean; – where "
    "there were fewer.",
    "allowed": "The tolerance given, or twice the engine's spread where that is more.",
    "TTFT": "First output token − arrival.",
    "TPOT": "(Last token − first token) ÷ (output tokens − 1), of a request.",
    "ITL": "One gap between two tokens of a request, all requests pooled.",
    "latency": "Last token − arrival.",
    "goodput": "Requests that meet every objective, per second from first arrival to last finish; without "
    "objectives all that finish.",
    "percentiles": "numpy's linear ones.",
}


def passed(sections: Sequence[Section]) -> bool:
    """Return whether nothing that was judged is out of tolerance."""
    return all(section.passed is not False for section in sections)


def write_report(
    folder: Path, title: str, sections: Sequence[Section], provenance: Mapping[str, Any], canvas: Canvas
) -> list[Path]:
    """Write ``report.html``, ``report.json`` and a PNG per picture; return their paths.

    Args:
        folder: exists.
        title: of the report.
        sections: in the order in which they are read; names of their pictures differ.
        provenance: where all this comes from, JSON types; part of both files.
        canvas: makes figures in the house's style.

    Raises:
        OSError: if they cannot be written.
    """
    images = {
        picture.name: _png(picture.draw, canvas(picture.width, picture.height))
        for section in sections
        for picture in section.pictures
    }
    for name, image in images.items():
        atomic_write(folder / f"{name}.png", image)
    atomic_write(folder / HTML, html_report(title, sections, provenance, images).encode())
    document = {
        "title": title,
        "passed": passed(sections),
        "misses": [miss for section in sections for miss in section.misses],
        "sections": [section.to_dict() for section in sections],
        "provenance": dict(provenance),
    }
    atomic_write(folder / JSON, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return [folder / HTML, folder / JSON, *(folder / f"{name}.png" for name in images)]


def _png(draw: Callable[[Figure], None], made: AbstractContextManager[Figure]) -> bytes:
    buffer = io.BytesIO()
    with made as figure:
        draw(figure)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def html_report(
    title: str, sections: Sequence[Section], provenance: Mapping[str, Any], images: Mapping[str, bytes]
) -> str:
    """Return the report as one HTML document that needs no other file."""
    contents = "".join(
        f'<li><span class="tag">{_text(s.level)}</span> <a href="#s{k}">{_text(s.title)}</a>: {_verdict(s.passed)}</li>'
        for k, s in enumerate(sections)
    )
    body = "".join(_section(k, section, images) for k, section in enumerate(sections))
    definitions = "".join(f"<dt>{_text(name)}</dt><dd>{_text(what)}</dd>" for name, what in DEFINITIONS.items())
    overall = passed(sections)
    verdict = "Everything judged is within tolerance." if overall else "Something is out of tolerance; see below."
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>'
        f'<h1>{_text(title)}</h1><p class="{"good" if overall else "bad"}">{verdict}</p>\n'
        f"<nav><ul>{contents}</ul></nav>\n"
        f"{body}<h2>What the words mean</h2><dl>{definitions}</dl>\n<h2>Where this comes from</h2>"
        f"<pre>{_text(json.dumps(dict(provenance), indent=1, ensure_ascii=False))}</pre>\n</body></html>\n"
    )


def _section(number: int, section: Section, images: Mapping[str, bytes]) -> str:
    parts = [
        f'<h2 id="s{number}"><span class="tag">{_text(section.level)}</span> {_text(section.title)}</h2>',
        f"<p>{_verdict(section.passed)}. {_text(section.summary)}</p>",
    ]
    if section.misses:
        parts.append("<ul>" + "".join(f'<li class="bad">{_text(m)}</li>' for m in section.misses) + "</ul>")
    parts += [_table(grid) for grid in section.tables]
    if section.verbatim:
        parts.append(f"<pre>{_text(section.verbatim)}</pre>")
    for picture in section.pictures:
        data = base64.b64encode(images[picture.name]).decode()
        caption = _text(picture.caption)
        inches = round(110 * picture.width)
        parts.append(
            f'<figure><img alt="{caption}" width="{inches}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    parts += [f"<p>{_text(paragraph)}</p>" for paragraph in section.text]
    return "\n".join(parts) + "\n"


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{_text(c)}</th>" for c in grid.columns)
    marks = list(grid.marks) or [None] * len(grid.rows)
    rows = []
    for row, mark in zip(grid.rows, marks, strict=True):
        kind = ' class="bad"' if mark is False else ""
        rows.append(f"<tr{kind}>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    caption = f"<caption>{_text(grid.caption)}</caption>" if grid.caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _verdict(value: bool | None) -> str:
    kind = {True: "good", False: "bad", None: "none"}[value]
    return f'<span class="{kind}">{VERDICTS[value]}</span>'


def _text(value: Any) -> str:
    return html.escape(str(value))
