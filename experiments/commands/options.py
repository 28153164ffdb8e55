"""Options that commands share, and how they become a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from experiments.draft import Draft

TRACE, RUN, OUTPUT = "Trace", "Run", "Output"
MEMORY = "Memory, hardware and replicas"
ENGINE = "Engine"

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=OUTPUT)]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Results folder; not an existing one.", rich_help_panel=OUTPUT),
]
DocumentOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="A new folder for the JSON document.", rich_help_panel=OUTPUT),
]
NoSeed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Nothing here is random; accepted as everywhere.", hidden=True)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in a folder that exists.", rich_help_panel=OUTPUT)]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The seed, or the first.", rich_help_panel=RUN)]
Seeds = Annotated[int | None, typer.Option("--seeds", metavar="N", help="Seeds 0 to N-1.", rich_help_panel=RUN)]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE", help="A Python file of policies of your own.", rich_help_panel=RUN),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="POLICY",
        help="ordering[:k=v,...]+chunking[:k=v,...][+admission[:k=v,...]], or an alias.",
        rich_help_panel=RUN,
    ),
]
Workload = Annotated[
    str | None,
    typer.Option("--workload", metavar="NAME", help="A synthetic workload, NAME[:k=v,...].", rich_help_panel=TRACE),
]
TraceFile = Annotated[
    str | None, typer.Option("--trace", metavar="FILE", help="A trace in any known format.", rich_help_panel=TRACE)
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", "--requests", metavar="N", help="First N requests; as many of a workload.", rich_help_panel=TRACE
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", metavar="R", help="R requests/s: Poisson arrivals in place of a file's own.", rich_help_panel=TRACE
    ),
]
RateScale = Annotated[
    float | None, typer.Option("--rate-scale", metavar="X", help="Arrivals X times as dense.", rich_help_panel=TRACE)
]
Format = Annotated[
    str | None, typer.Option("--format", help="The file's format, if not recognised.", rich_help_panel=TRACE)
]
BlockSize = Annotated[
    int | None, typer.Option("--block-size", metavar="N", help="Tokens per hash id.", rich_help_panel=TRACE)
]
Slo = Annotated[
    str | None,
    typer.Option("--slo", metavar="KEY:MS,...", help="Objectives, like ttft:1000,tpot_p99:25.", rich_help_panel=RUN),
]
CostModel = Annotated[
    str | None, typer.Option("--cost-model", metavar="NAME|FILE", help="What steps take.", rich_help_panel=RUN)
]
PolicyCostModel = Annotated[
    str | None,
    typer.Option("--policy-cost-model", metavar="NAME|FILE", help="What policies believe.", rich_help_panel=RUN),
]
MaxNumSeqs = Annotated[
    int | None, typer.Option("--max-num-seqs", metavar="N", help="Most requests at once.", rich_help_panel=RUN)
]
PipelineDepth = Annotated[
    int | None,
    typer.Option(
        "--pipeline-depth", metavar="1|2", help="Steps in flight; 2: vLLM's async scheduling.", rich_help_panel=RUN
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="Of the weights.", rich_help_panel=ENGINE)]
LoadFormat = Annotated[
    str, typer.Option("--load-format", metavar="HOW", help="dummy: random weights.", rich_help_panel=ENGINE)
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option("--max-num-batched-tokens", metavar="N", help="Most tokens of a step.", rich_help_panel=ENGINE),
]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", metavar="NAME=JSON", help="Any other of the engine's own.", rich_help_panel=ENGINE),
]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", metavar="N", help="Most tokens of a request.", rich_help_panel=RUN)
]
Horizon = Annotated[
    float | None, typer.Option("--horizon", metavar="S", help="No step starts after S seconds.", rich_help_panel=RUN)
]
KvBlocks = Annotated[
    int | None,
    typer.Option("--kv-blocks", metavar="N", help="KV blocks of each replica, not unlimited.", rich_help_panel=MEMORY),
]
KvBlockSize = Annotated[
    int | None, typer.Option("--kv-block-size", metavar="N", help="Tokens of a KV block.", rich_help_panel=MEMORY)
]
PrefixCache = Annotated[
    bool | None,
    typer.Option(
        "--prefix-cache/--no-prefix-cache", help="By default where KV blocks are known.", rich_help_panel=MEMORY
    ),
]
MemoryRegime = Annotated[
    str | None,
    typer.Option("--memory", metavar="REGIME", help="pool (vLLM's), or store (PrefillOnly's).", rich_help_panel=MEMORY),
]
Suffix = Annotated[
    str | None,
    typer.Option(
        "--suffix", metavar="HOW", help="Prompts' ends in a store: keep, discard, offload.", rich_help_panel=MEMORY
    ),
]
MaxInput = Annotated[
    int | None, typer.Option("--max-input", metavar="N", help="Longest prompt in tokens.", rich_help_panel=MEMORY)
]
GpuName = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="With --llm: gives cost model and memory.", rich_help_panel=MEMORY),
]
LlmName = Annotated[
    str | None,
    typer.Option("--llm", metavar="NAME", help="With --gpu: gives cost model and memory.", rich_help_panel=MEMORY),
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="How prompts are prefilled: paged, chunked, hybrid, ...", rich_help_panel=MEMORY
    ),
]
Tp = Annotated[int | None, typer.Option("--tp", metavar="N", help="Tensor parallel GPUs.", rich_help_panel=MEMORY)]
Pp = Annotated[int | None, typer.Option("--pp", metavar="N", help="Pipeline stages.", rich_help_panel=MEMORY)]
Link = Annotated[
    str | None, typer.Option("--link", metavar="LINK", help="Between GPUs: pcie, nvlink.", rich_help_panel=MEMORY)
]
Replicas = Annotated[
    int | None, typer.Option("--replicas", metavar="N", help="Engines behind a router.", rich_help_panel=MEMORY)
]
RouterName = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="ROUTER",
        help="user, round-robin, least-loaded or prefix-affinity.",
        rich_help_panel=MEMORY,
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, metavar="N", help="Processes; all cores by default.", rich_help_panel=RUN)
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="An experiment's file.", rich_help_panel=RUN)
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the configuration.", rich_help_panel=RUN),
]

KEYS = {
    "policy": ("--policy", "policies"),
    "plugin": ("--plugin", "plugins"),
    "workload": ("--workload", "trace.workload"),
    "trace": ("--trace", "trace.file"),
    "limit": ("--limit", "trace.limit"),
    "rate": ("--rate", "trace.rate"),
    "rate_scale": ("--rate-scale", "trace.rate_scale"),
    "trace_format": ("--format", "trace.format"),
    "block_size": ("--block-size", "trace.block_size"),
    "slo": ("--slo", "slo"),
    "cost_model": ("--cost-model", "cost_model"),
    "policy_cost_model": ("--policy-cost-model", "policy_cost_model"),
    "max_num_seqs": ("--max-num-seqs", "engine.max_num_seqs"),
    "max_model_len": ("--max-model-len", "engine.max_model_len"),
    "horizon": ("--horizon", "engine.horizon"),
    "pipeline_depth": ("--pipeline-depth", "engine.pipeline_depth"),
    "kv_blocks": ("--kv-blocks", "memory.blocks"),
    "kv_block_size": ("--kv-block-size", "memory.block_size"),
    "prefix_cache": ("--prefix-cache", "memory.prefix_cache"),
    "memory": ("--memory", "memory.regime"),
    "suffix": ("--suffix", "memory.suffix"),
    "max_input": ("--max-input", "memory.max_input"),
    "gpu": ("--gpu", "hardware.gpu"),
    "llm": ("--llm", "hardware.llm"),
    "mode": ("--mode", "hardware.mode"),
    "tp": ("--tp", "hardware.tp"),
    "pp": ("--pp", "hardware.pp"),
    "link": ("--link", "hardware.link"),
    "replicas": ("--replicas", "cluster.replicas"),
    "router": ("--router", "cluster.router"),
}
"""Option and key of the configuration, by the name of a command's parameter."""


def given(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return those of a command's parameters that :func:`collect` takes by the names in :data:`KEYS`."""
    return {name: value for name, value in parameters.items() if name in KEYS}


def collect(
    config: Path | None,
    sets: list[str] | None,
    *,
    name: str,
    seeds: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> Draft:
    """Lay the options over a file and ``--set`` over both.

    Args:
        config: the TOML file, if any.
        sets: ``key=value`` texts.
        name: of the experiment, where the file gives none.
        seeds: how many.
        seed: the first of them; alone, the only one.
        options: see :func:`given`; by the names in :data:`KEYS`; ``None`` and empty lists mean "not given".

    Raises:
        ConfigError: if the file cannot be read, or a text is no ``key=value``.
    """
    from experiments.config import MOST_SEEDS
    from experiments.draft import Draft

    draft = Draft()
    draft.put("name", name, "default")
    if config is not None:
        draft.put_file(config)
    for parameter, value in options.items():
        draft.put_option(*KEYS[parameter], value)
    if seed is not None and (seeds is None or 0 < seeds <= MOST_SEEDS):
        draft.put_option("--seed", "seeds", list(range(seed, seed + (seeds or 1))))
    else:
        draft.put_option("--seeds", "seeds", seeds)
    for text in sets or ():
        draft.put_set(text)
    return draft


def settle_on_one_run(draft: Draft) -> None:
    """Keep every record, and of the seeds the first only, 0 where none is set.

    Raises:
        ConfigError: if what this replaces is not valid.
    """
    as_given = draft.copy()
    as_given.take_axes()
    as_given.finish()
    draft.put("keep", "records", "simulate")
    seeds = draft.get("seeds")
    if seeds is None or isinstance(seeds, int):
        draft.put("seeds", [0], draft.origin("seeds"), "one seed")
    elif isinstance(seeds, list):
        draft.put("seeds", seeds[:1], draft.origin("seeds"), "one seed")
