"""Left out by the paper: what becomes of suffixes, and how memory is split between inference and prefix store."""

from __future__ import annotations

from dataclasses import replace

from costmodels.hardware import load_gpu
from costmodels.parallel import pcie_bytes_per_s
from experiments.prefillonly.bench import CREDIT, POST, Point, arriving, at_once, saturation
from experiments.prefillonly.hitrates import SETUP
from experiments.prefillonly.panels import Panels
from experiments.prefillonly.study import Seeds, Study
from experiments.prefillonly.systems import SETUPS, WORKLOADS, Deployment, deploy, memory_model

CPU_BYTES = 256 * 2**30
"""CPU memory of each replica."""

RETURNING = f"{CREDIT}:users=20,requests_per_user=3,post_tokens=2000"
"""Each history of 40,000 to 60,000 tokens is asked about three times, with 2,000 tokens of one's own."""

RETURNING_LONGEST = 62_000


def offloading(system: Deployment, slower: int = 1) -> Deployment:
    """Return a PrefillOnly deployment that keeps all KV in CPU memory too; ``slower`` divides the bandwidth of PCIe."""
    model = memory_model(SETUP, "prefillonly")
    per_block = system.memory.block_size * model.kv_bytes_per_token
    gpu = load_gpu(SETUP.gpu)
    memory = replace(
        system.memory,
        suffix="offload",
        cpu_blocks=CPU_BYTES // per_block,
        bytes_per_block=per_block,
        pcie_bytes_per_s=pcie_bytes_per_s(gpu) // slower,
        pcie_latency_ns=gpu.pcie_latency_ns,
    )
    return replace(system, memory=memory)


def suffix_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """Nothing kept, all kept, the suffix discarded, or all offloaded at three bandwidths, on two workloads."""
    points: list[Point] = []
    for name, workload, longest in (
        ("post", POST, WORKLOADS[POST]),
        ("returning", RETURNING, RETURNING_LONGEST),
    ):
        system = deploy(SETUP, "prefillonly", longest)
        x = saturation(system, at_once(workload), seeds, jobs)
        variants = {
            "nothing": replace(system, memory=replace(system.memory, blocks=0)),
            "keep": replace(system, memory=replace(system.memory, suffix="keep")),
            "discard": system,
            "PCIe/100": offloading(system, 100),
            "PCIe/10": offloading(system, 10),
            "PCIe": offloading(system),
        }
        for multiple in (0.5, 1.0):
            load = arriving("requests", multiple * x, workload)
            for variant, changed in variants.items():
                points.append(({"workload": name, "suffix": variant, "rate": f"{multiple:g} x"}, changed, load))
    return points


SUFFIXES = Study(
    stem="left-out-suffixes",
    title="What becomes of a finished request's KV, requests shuffled",
    setup=SETUP.title,
    by=("workload", "suffix", "rate"),
    points=suffix_points,
    panels=Panels(
        x="suffix",
        x_label="",
        series="rate",
        metrics=("hit_rate", "throughput", "mean_s"),
        across="workload",
        titles={"post": "post recommendation", "returning": "50,000-token histories, asked 3 times"},
    ),
    over="suffix",
    base="discard",
    compared=("throughput", "hit_rate", "mean_s", "p99_s"),
)

SHORTEST = 11_150
"""The shortest prompt of post recommendation, in tokens."""


def split_points(seeds: Seeds, jobs: int | None) -> list[Point]:
    """The store that is left when the profile run is made for longer and longer prompts, on two set-ups.

    A dynamic split, sized by the request that is running, lies between that for the longest prompt of the trace and
    that for the shortest; it is not modelled itself.
    """
    points: list[Point] = []
    longest = WORKLOADS[POST]
    for setup in (SETUPS["h100"], SETUPS["a100"]):
        system = deploy(setup, "prefillonly", longest)
        model = memory_model(setup, "prefillonly")
        x = saturation(system, at_once(), seeds, jobs)
        profiled = {"MIL": model.max_input_length(), "60,000": 60_000, "17,150": longest, "11,150": SHORTEST}
        for mode in ("users", "requests"):
            for name, tokens in profiled.items():
                memory = replace(system.memory, blocks=model.kv_blocks_after_profile(tokens))
                at = {
                    "setup": setup.name,
                    "profiled": name,
                    "arrivals": mode,
                    "store_tokens": 16 * (memory.blocks or 0),
                }
                points.append((at, replace(system, memory=memory), arriving(mode, x)))
    return points


SPLIT = Study(
    stem="left-out-split",
    title="Working memory for one prompt, the rest for prefixes; post recommendation at x",
    by=("setup", "profiled", "arrivals"),
    beside=("store_tokens",),
    points=split_points,
    panels=Panels(
        x="profiled",
        x_label="longest prompt of the profile run (tokens)",
        series="arrivals",
        metrics=("hit_rate", "throughput", "mean_s"),
        across="setup",
        titles={name: setup.title for name, setup in SETUPS.items()},
        names={"users": "whole users at once", "requests": "requests shuffled"},
    ),
    over="profiled",
    base="17,150",
)
