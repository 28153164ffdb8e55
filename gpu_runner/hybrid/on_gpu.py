"""``python -m gpu_runner.hybrid.on_gpu``: all that a GPU can say of hybrid prefilling within ten minutes."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_runner.engine import EngineError
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.options import NEEDED, need
from gpu_runner.profile import ProfileStopped
from sim.provenance import provenance

MINUTES = 9.5
RESULTS = "results.json"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts and return the exit status: 0, 1 if a part has failed, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.hybrid.on_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the results")
    parser.add_argument("--small", action="store_true", help="seconds in place of minutes, on a CPU too")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help=f"for everything ({MINUTES})")
    parser.add_argument("--device", default="auto", help="cpu or cuda; the GPU where there is one")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and prompts")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    try:
        need(NEEDED)
        return _run(given, begin)
    except (EngineError, HybridError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, ProfileStopped):
        print(f"interrupted; what was measured is in {given.out / RESULTS}", file=sys.stderr)
        return 130


def _run(given: Any, begin: float) -> int:
    import torch

    if not (given.small or torch.cuda.is_available()):
        raise HybridError("PyTorch finds no GPU here; --small runs the same at small size on a CPU")
    if not given.minutes > 0:
        raise HybridError(f"--minutes is {given.minutes:g}; it must be above 0")
    if given.out.exists() and any(given.out.iterdir()):
        raise HybridError(f"{given.out} is not empty; give a new folder")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.small:
        torch.set_num_threads(1)  # others would only wait for one another

    from gpu_runner.hybrid.on_gpu_book import Book
    from gpu_runner.hybrid.on_gpu_correct import correct
    from gpu_runner.hybrid.on_gpu_jct import jct
    from gpu_runner.hybrid.on_gpu_memory import limits, memory
    from gpu_runner.hybrid.on_gpu_speed import speed
    from gpu_runner.hybrid.on_gpu_subject import Subject, full, small

    subject = Subject(small() if given.small else full(), given.out, given.device, given.seed)
    about = _about(subject)
    book = Book(given.out / RESULTS, about, 60 * given.minutes - (time.monotonic() - begin), _say)
    _say(f"{about['engine']['device']}, {subject.shape.name} with {subject.shape.layers} layers")
    profiled = {key: about[key] for key in ("source", "date", "command")}
    book.run(
        {
            "correct": (10, lambda part: correct(subject, part)),
            "speed": (20, lambda part: speed(subject, part)),
            "memory": (15, lambda part: memory(subject, part)),
            "jct": (40, lambda part: jct(subject, part, given.out, profiled)),
            "limits": (15, lambda part: limits(subject, part, book.parts["memory"].summary)),
        }
    )
    _say(f"results: {given.out / RESULTS}")
    return int(book.failed)


def _about(subject: Any) -> dict[str, Any]:
    """Return what was run, on what, by which code."""
    made = provenance()
    return {
        "source": f"measured by prefillsim {made['packages']['prefillsim']}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m gpu_runner.hybrid.on_gpu", *sys.argv[1:]]),
        **made,
        "engine": subject.engine.provenance(),
        "sizes": dataclasses.asdict(subject.sizes),
        "layers": subject.shape.layers,
        "reduced": subject.shape.layers < subject.sizes.shape.layers,
        "rooms_bytes": subject.rooms(),
        "allocator": {name: os.environ[name] for name in ALLOCATOR if name in os.environ},
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
