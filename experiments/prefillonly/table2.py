"""Maximum input lengths: the paper's Table 2, Figures 4 and 10 and its claims about memory, beside ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import resources

from costmodels import memory
from costmodels.hardware import load_gpu, load_llm
from costmodels.memory import MemoryModel
from experiments.prefillonly.measured import measured_lengths
from experiments.tables import Rows

SETUPS = {"l4": "llama-3.1-8b", "a100-40": "qwen-32b-fp8", "h100-pcie": "llama-3.3-70b-fp8"}
"""The model on each GPU (Table 3). The pair of H100 with NVLink has the same memory."""

SYSTEMS = ("paged", "chunked", "pipeline", "tensor", "prefillonly")

WL1_TOKENS, WL2_TOKENS = 17_150, 60_000
"""The longest request of post recommendation (17,000 of profile and 150 of post) and of credit verification."""

TOLERANCE = Fraction(1, 5)

WHOLE_TENSOR = frozenset({"a100-40"})
"""Where tensor parallelism is taken to prefill whole prompts; elsewhere it prefills by chunks."""

HALF_POOL = (
    "the paper's 38,000 is half of its tensor parallelism's 77,000 on the same cards: vLLM's first engine splits the "
    "KV pool between a pipeline's two virtual engines, which would take ours to about 45,000, but would put the L4's "
    "72,000 out of reach; the paper itself ticks 60,000 tokens in this cell"
)

BETWEEN = (
    "the paper's 183,000 lies between what whole prompts and chunks of 2,048 allow, so its stages took an amount of "
    "activations that neither does; on the L4 its 72,000 is that of whole prompts"
)

WHY = {("pipeline", "a100-40"): HALF_POOL, ("pipeline", "h100-pcie"): BETWEEN}
"""What a difference is likely to come from, by system and GPU."""

CHOICES = (
    ("pipeline parallelism prefills whole prompts", "Table 2: 72,000 on the L4; by chunks it would be about 180,000"),
    ("tensor parallelism prefills by chunks", "Table 2: at 195,000 and 238,000 whole prompts' activations do not fit"),
    (
        "tensor parallelism prefills whole prompts on the A100",
        "Table 2: 77,000, about half of what chunks allow; the paper does not say why this set-up differs",
    ),
)
"""How the parallel baselines prefill, which the paper does not say: three choices made by looking at Table 2."""


@dataclass(frozen=True)
class Cell:
    """A cell of Table 2 as printed: the maximum input length in tokens, and the ticks for the two workloads."""

    system: str
    gpu: str
    mil: int
    wl1: bool
    wl2: bool


def paper_cells() -> list[Cell]:
    """Return the fifteen cells of Table 2 as printed."""
    with (resources.files("experiments.prefillonly") / "table2.csv").open(encoding="utf-8") as file:
        return [
            Cell(r["system"], r["gpu"], int(r["mil"]), r["wl1"] == "yes", r["wl2"] == "yes")
            for r in csv.DictReader(file)
        ]


def system_memory(system: str, gpu: str, llm: str | None = None) -> MemoryModel:
    """Return the memory of one of :data:`SYSTEMS` on a GPU, with the paper's model unless ``llm`` names another.

    Raises:
        HardwareError: if a name is unknown or the model does not fit.
    """
    whole_tensor = "paged" if gpu in WHOLE_TENSOR else "chunked"
    mode, tp, pp = {
        "paged": ("paged", 1, 1),
        "chunked": ("chunked", 1, 1),
        "pipeline": ("paged", 1, 2),
        "tensor": (whole_tensor, 2, 1),
        "prefillonly": ("hybrid", 1, 1),
    }[system]
    return MemoryModel(load_llm(llm or SETUPS[gpu]), load_gpu(gpu), mode, tp, pp)


def table2_rows(
    utilisation: Fraction = memory.UTILISATION, reserved_bytes: int = memory.RESERVED_BYTES, kept: int = memory.KEPT
) -> Rows:
    """Return Table 2, the paper's cells beside ours, in the paper's order.

    ``other_way`` is, for the parallel systems, ours with chunks instead of whole prompts or the other way round.
    ``measured`` is, for the others, how far the hybrid executor's own code gets (:func:`measured_lengths`).
    """
    measured = measured_lengths()
    rows: Rows = []
    for cell in paper_cells():
        model = replace(
            system_memory(cell.system, cell.gpu), utilisation=utilisation, reserved_bytes=reserved_bytes, kept=kept
        )
        ours = model.max_input_length()
        other = "chunked" if model.mode == "paged" else "paged"
        within = abs(Fraction(ours, cell.mil) - 1) <= TOLERANCE
        rows.append(
            {
                "gpu": cell.gpu,
                "llm": model.llm.name,
                "system": cell.system,
                "mode": model.mode,
                "tp": model.tp,
                "pp": model.pp,
                "paper": cell.mil,
                "ours": ours,
                "measured": measured[cell.gpu, model.llm.name, model.mode] if model.tp * model.pp == 1 else None,
                "ratio": ours / cell.mil,
                "within": within,
                "other_way": replace(model, mode=other).max_input_length() if model.tp * model.pp > 1 else None,
                "wl1_paper": cell.wl1,
                "wl1_ours": ours >= WL1_TOKENS,
                "wl2_paper": cell.wl2,
                "wl2_ours": ours >= WL2_TOKENS,
                "why": "" if within else WHY.get((cell.system, cell.gpu), ""),
            }
        )
    return rows


def ranking(rows: Rows, gpu: str, column: str) -> list[str]:
    """Return the systems on ``gpu`` from the longest input to the shortest by ``column``, ``paper`` or ``ours``."""
    return [r["system"] for r in sorted((r for r in rows if r["gpu"] == gpu), key=lambda r: -r[column])]


def contradictions() -> list[str]:
    """Return where the paper contradicts itself, a sentence each: ticks against lengths, and a ratio in the text."""
    found = []
    cells = paper_cells()
    for cell in cells:
        for name, ticked, longest in (("WL1", cell.wl1, WL1_TOKENS), ("WL2", cell.wl2, WL2_TOKENS)):
            if ticked != (cell.mil >= longest):
                found.append(
                    f"{cell.system} on {cell.gpu} is {'' if ticked else 'not '}ticked for {name}, whose longest "
                    f"request has {longest:,} tokens, at a maximum input length of {cell.mil:,}"
                )
    mil = {(c.system, c.gpu): c.mil for c in cells}
    ratios = {g: mil["prefillonly", g] / mil["chunked", g] for g in SETUPS}
    if max(ratios.values()) < 8.7:
        printed = ", ".join(f"{r:.1f} on {g}" for g, r in ratios.items())
        found.append(f"§7.2 has more than 8.7 times the length of chunked prefill, Table 2 {printed}")
    return found


def free_constants() -> Rows:
    """Return everything in the memory model that shapes and data sheets do not give, and where it is from."""
    rows: Rows = [
        {"constant": "usable share of memory", "value": float(memory.UTILISATION), "from": "Table 2"},
        {"constant": "reserved by CUDA, MiB", "value": memory.RESERVED_BYTES / 2**20, "from": "Table 2"},
        {"constant": "extra tensors of hidden width in hybrid prefilling", "value": memory.KEPT, "from": "Table 2"},
        {
            "constant": "reserved for communication, MiB per GPU of two",
            "value": memory.LINKED_BYTES / 2**20,
            "from": "profiling logs of vLLM pull request 10511",
        },
        {"constant": "tokens per chunk", "value": memory.CHUNK, "from": "vLLM's default"},
    ]
    return rows + [{"constant": choice, "value": None, "from": source} for choice, source in CHOICES]


def sensitivity_rows() -> Rows:
    """Return the cells within 20 % and the GPUs ranked as in the paper, over the two constants that matter most."""
    rows: Rows = []
    for percent in range(93, 99):
        for mib in (0, 200, 400, 600, 800):
            table = table2_rows(Fraction(percent, 100), mib * 2**20)
            ranked = [g for g in SETUPS if ranking(table, g, "ours") == ranking(table, g, "paper")]
            rows.append(
                {
                    "usable_percent": percent,
                    "reserved_mib": mib,
                    "within": sum(r["within"] for r in table),
                    "ranked": len(ranked),
                }
            )
    return rows


def figure4_rows(tokens: int = 32_768, llm: str = "llama-3.1-8b") -> Rows:
    """Return the tensors of one MLP (Figure 4): width, bytes over ``tokens``, and size over one layer's KV."""
    shape = load_llm(llm)
    kv = shape.kv_bytes_per_token_and_layer
    return [
        {
            "tensor": name,
            "tokens": tokens,
            "width": width,
            "bytes": tokens * width * shape.activation_bytes,
            "of_layer_kv": Fraction(width * shape.activation_bytes, kv),
            "paper": paper,
        }
        for name, width, paper in (
            ("input", shape.hidden, None),
            ("first intermediate", 2 * shape.intermediate, 14),
            ("second intermediate", shape.intermediate, 7),
        )
    ]


def figure10_rows(gpu: str = "a100-40") -> Rows:
    """Return what each part of hybrid prefilling adds (Figure 10), in tokens and over whole-prompt prefilling.

    The paper's bars are a picture: only the last one's ratio agrees with a number printed elsewhere (Table 2).
    ``measured`` is how far the hybrid executor's own code gets (:func:`measured_lengths`).
    """
    base = system_memory("paged", gpu)
    paged = base.max_input_length()
    measured = {mode: length for (at, _, mode), length in measured_lengths().items() if at == gpu}
    return [
        {
            "variant": name,
            "mode": mode,
            "ours": (ours := replace(base, mode=mode).max_input_length()),
            "times_paged": ours / paged,
            "measured": measured[mode],
            "measured_times_paged": measured[mode] / measured["paged"],
            "paper": paper,
        }
        for name, mode, paper in (
            ("whole prompts", "paged", 1.0),
            ("chunked prefill", "chunked", None),
            ("KV discarding alone", "discard", None),
            ("hybrid: chunking", "hybrid-chunking", None),
            ("hybrid: and preallocation", "hybrid-preallocation", None),
            ("hybrid: and in place", "hybrid", 7.9),
        )
    ]


def claim_rows() -> Rows:
    """Return the paper's single numbers about memory beside ours (§4, §5 and Table 2)."""
    l4, a100 = system_memory("paged", "l4"), system_memory("paged", "a100-40")

    def length(model: MemoryModel, mode: str) -> int:
        return replace(model, mode=mode).max_input_length()

    saved = l4.working_bytes(32_768) - (
        replace(l4, mode="hybrid").working_bytes(32_768) - 32_768 * l4.layer_kv_bytes_per_token
    )
    return [
        {
            "claim": "KV discarding alone, times the length (L4, Llama-3.1-8B)",
            "paper": 1.6,
            "ours": length(l4, "discard") / length(l4, "paged"),
            "why": "1.6 needs some 200 kB of activations per token, but by Table 2 itself whole prompts of this model "
            "on this GPU take about 120 kB more than chunks do, and we count 110 kB",
        },
        {
            "claim": "hybrid prefilling, peak lower by (32,768 tokens, Llama-3.1-8B), GB",
            "paper": 2.0,
            "ours": saved / 1e9,
            "why": "",
        },
        {
            "claim": "PrefillOnly over whole prompts, times the length (A100)",
            "paper": 7.9,
            "ours": length(a100, "hybrid") / length(a100, "paged"),
            "why": "",
        },
        {
            "claim": "PrefillOnly over chunked prefill, times the length (A100)",
            "paper": 5.1,
            "ours": length(a100, "hybrid") / length(a100, "chunked"),
            "why": "",
        },
        {
            "claim": "100,000 tokens' KV of Llama-3.1-8B, GB",
            "paper": 12.0,
            "ours": 100_000 * l4.llm.kv_bytes_per_token / 1e9,
            "why": "13.1 GB are 12.2 GiB",
        },
    ]
