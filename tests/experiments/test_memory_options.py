"""KV memory, hardware and replicas: what follows from hardware, what overrides it, and what runs show of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.hardware import HardwareError, load_gpu, load_llm
from costmodels.io import load_cost_model
from costmodels.memory import MODES, MemoryModel
from costmodels.parallel import shipped_efficiency
from experiments.axes import Experiment, plan
from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.memory import GIB, memory_model_of, memory_of
from experiments.run import simulate_cell
from policies.spec import parse_policy
from sim.cluster import simulate_cluster
from sim.engine import simulate
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import Tables
from traces.synthetic import generate

Cli = Callable[..., Any]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

SET_UPS = (("llama-3.1-8b", "l4"), ("qwen-32b-fp8", "a100-40"), ("llama-3.3-70b-fp8", "h100-pcie"))
ON_L4 = {"hardware.gpu": "l4", "hardware.llm": "llama-3.1-8b"}


def drafted(**values: Any) -> Draft:
    draft = Draft()
    for key, value in values.items():
        draft.put(key, value, "test")
    return draft


def memory(longest_prompt: int = 5000, **values: Any) -> Memory | None:
    config = drafted(**values).finish()
    return memory_of(config, memory_model_of(config), longest_prompt)


def planned(**values: Any) -> Experiment:
    base = {"trace.workload": "post-recommendation", "trace.limit": 8, "policies": ["fcfs+full"], "seeds": [0]}
    return plan(drafted(**{**base, **values}))


def cell(**values: Any) -> Cell:
    (only,) = planned(**values).cells
    return only


def assert_tables_equal(a: Tables, b: Tables) -> None:
    for name in ("requests", "steps", "chunks", "preemptions"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.keys() == right.keys()
        for column, values in left.items():
            np.testing.assert_array_equal(values, right[column], f"{name}.{column}")
    assert a.reasons == b.reasons


def requests_at_once(folder: Path, *sizes: tuple[int, int]) -> str:
    """Write a trace of requests (prompt and output tokens) that all arrive at the same time."""
    rows = "".join(f"2023-11-16 18:15:46.0000000,{prompt},{output}\n" for prompt, output in sizes)
    (folder / "trace.csv").write_text(AZURE + rows)
    return "trace.csv"


@settings(max_examples=60, deadline=None)
@given(
    set_up=st.sampled_from(SET_UPS),
    mode=st.sampled_from(MODES),
    tp=st.sampled_from((1, 2)),
    pp=st.integers(1, 3),
    block_size=st.sampled_from((8, 16, 32)),
    longest=st.integers(1, 200_000),
)
def test_blocks_and_longest_input_follow_from_the_hardware(
    set_up: tuple[str, str], mode: str, tp: int, pp: int, block_size: int, longest: int
) -> None:
    llm, gpu = set_up
    model = MemoryModel(load_llm(llm), load_gpu(gpu), mode, tp, pp)
    most = model.max_input_length(block_size)
    left = model.kv_blocks_after_profile(min(longest, most), block_size)
    whole = mode in ("paged", "chunked")
    assume(left > 1 or not whole)
    hardware = {"gpu": gpu, "llm": llm, "mode": mode, "tp": tp, "pp": pp}
    derived = memory(longest, hardware=hardware, memory={"block_size": block_size})
    assert derived == Memory(blocks=left, block_size=block_size, regime="pool" if whole else "store", max_input=most)


def test_the_profile_run_takes_the_length_that_is_given() -> None:
    model = MemoryModel(load_llm("llama-3.1-8b"), load_gpu("l4"), "hybrid")
    hybrid = {**ON_L4, "hardware.mode": "hybrid"}
    for values, length, max_input in (
        ({"memory.max_input": 60_000}, 60_000, 60_000),
        ({"engine.max_model_len": 40_000}, 40_000, model.max_input_length()),
        ({"engine.max_model_len": 40_000, "memory.max_input": 30_000}, 30_000, 30_000),
    ):
        made = memory(5000, **hybrid, **values)
        assert made is not None
        assert (made.blocks, made.max_input) == (model.kv_blocks_after_profile(length), max_input)
    with pytest.raises(HardwareError, match="the length must lie between 1 and"):
        memory(5000, **hybrid, **{"memory.max_input": 1_000_000})


def test_what_is_given_overrides_what_follows() -> None:
    hybrid = {**ON_L4, "hardware.mode": "hybrid"}
    made = memory(**hybrid, **{"memory.blocks": 7, "memory.max_input": 1_000_000, "memory.regime": "pool"})
    assert made == Memory(blocks=7, max_input=1_000_000)
    assert memory(**ON_L4, **{"memory.blocks": 7, "memory.max_input": 9, "memory.prefix_cache": False}) == Memory(
        blocks=7, max_input=9, prefix_cache=False
    )


def test_a_store_beside_paged_prefilling_leaves_room_for_the_running_prompt() -> None:
    model = MemoryModel(load_llm("llama-3.1-8b"), load_gpu("l4"), "paged")
    made = memory(5000, **ON_L4, **{"memory.regime": "store"})
    assert made is not None
    assert made.blocks == model.kv_blocks_after_profile(5000) - 313
    alone = memory(10**6, **ON_L4, **{"memory.regime": "store"})
    assert alone is not None
    assert alone.blocks == 1  # which a pool of vLLM's would not give out


def test_offloading_in_a_users_units() -> None:
    by_hand = {
        "memory.regime": "store",
        "memory.suffix": "offload",
        "memory.blocks": 3,
        "memory.cpu_gib": 0.5,
        "memory.bytes_per_block": 3 * 2**20,
        "memory.pcie_gb_per_s": 12.5,
        "memory.pcie_latency_us": 1.5,
    }
    expected = Memory(
        blocks=3,
        regime="store",
        suffix="offload",
        cpu_blocks=170,
        bytes_per_block=3 * 2**20,
        pcie_bytes_per_s=12_500_000_000,
        pcie_latency_ns=1500,
    )
    assert memory(**by_hand) == expected
    gpu, model = load_gpu("l4"), MemoryModel(load_llm("llama-3.1-8b"), load_gpu("l4"), "hybrid", pp=2)
    derived = memory(
        **ON_L4, **{"hardware.mode": "hybrid", "hardware.pp": 2, "memory.suffix": "offload", "memory.cpu_gib": 8}
    )
    assert derived is not None
    assert derived.bytes_per_block == 16 * model.kv_bytes_per_token
    assert derived.cpu_blocks == 8 * GIB // (16 * model.kv_bytes_per_token)
    assert derived.pcie_latency_ns == gpu.pcie_latency_ns
    assert derived.pcie_bytes_per_s == pytest.approx(float(shipped_efficiency().pcie) * gpu.pcie_bytes_per_s)
    with pytest.raises(ConfigError, match=r"suffix=offload needs memory\.cpu_gib"):
        memory(**{**by_hand, "memory.cpu_gib": None})
    with pytest.raises(ConfigError, match=r"cpu_gib is 0\.001, but a block takes 0\.00293 GiB"):
        memory(**{**by_hand, "memory.cpu_gib": 0.001})
    with pytest.raises(ConfigError, match="suffix=offload is for regime=store"):
        memory(**{"memory.suffix": "offload", "memory.blocks": 30})


def test_without_memory_nothing_changes() -> None:
    assert memory() is None
    assert memory(**{"memory.block_size": 4}) is None
    assert memory(**{"memory.prefix_cache": False}) is None
    assert memory(**{"memory.prefix_cache": True}) == Memory()
    assert memory(**{"memory.max_input": 5}) == Memory(prefix_cache=False, max_input=5)
    assert memory(**{"memory.blocks": 20}) == Memory(blocks=20)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "prefill:llm=llama-3.1-8b,gpu=l4"),
        ({"mode": "hybrid"}, "prefill:llm=llama-3.1-8b,gpu=l4"),
        ({"mode": "chunked", "chunk": 512}, "prefill:llm=llama-3.1-8b,gpu=l4,chunk=512"),
        ({"tp": 2}, "prefill:llm=llama-3.1-8b,gpu=l4,tp=2"),
        ({"pp": 2, "link": "pcie"}, "prefill:llm=llama-3.1-8b,gpu=l4,pp=2,link=pcie"),
    ],
)
def test_hardware_gives_the_cost_model_where_none_is_given(values: dict[str, Any], name: str) -> None:
    hardware = {"gpu": "l4", "llm": "llama-3.1-8b", **values}
    assert cell(hardware=hardware).cost == load_cost_model(name)
    given = cell(hardware=hardware, cost_model="sloweave-paper")
    assert given.cost == load_cost_model("sloweave-paper")
    assert given.memory == cell(hardware=hardware).memory
    assert cell().cost == load_cost_model("sloweave-paper")


def test_a_configuration_survives_its_own_dump() -> None:
    values = {
        **ON_L4,
        "hardware.mode": "hybrid",
        "memory.suffix": "offload",
        "memory.cpu_gib": 2.5,
        "cluster.replicas": 3,
        "cluster.router": "least-loaded",
    }
    config = planned(**values).config
    again = drafted(**config.model_dump(mode="json", exclude_none=True, exclude_unset=True)).finish()
    assert again == config


def test_memory_hardware_and_replicas_are_axes() -> None:
    swept = planned(
        sweep={"memory": {"blocks": [2000, 4000], "prefix_cache": [True, False]}, "cluster": {"replicas": [1, 2]}}
    ).cells
    got = [(c.memory, c.cluster.replicas) for c in swept]
    assert got == [(Memory(blocks=b, prefix_cache=p), r) for b in (2000, 4000) for p in (True, False) for r in (1, 2)]
    assert len({c.key for c in swept}) == 8
    gpus = planned(**{"hardware.llm": "llama-3.1-8b", "sweep": {"hardware": {"gpu": ["l4", "a100-80"]}}}).cells
    for c, gpu in zip(gpus, ("l4", "a100-80"), strict=True):
        assert c.cost == load_cost_model(f"prefill:llm=llama-3.1-8b,gpu={gpu}")
        assert c.memory is not None
        assert c.memory.max_input == MemoryModel(load_llm("llama-3.1-8b"), load_gpu(gpu)).max_input_length()
    with pytest.raises(ConfigError, match=r"did you mean memory\.blocks\?"):
        planned(sweep={"memory": {"block": [3]}})
    with pytest.raises(ConfigError, match="blocks is 1, but a pool needs at least 2"):
        planned(sweep={"memory": {"blocks": [5, 1]}})


def test_a_cell_runs_with_its_memory_and_replicas() -> None:
    trace = generate("post-recommendation", 0, 8)
    cost, objectives, bounded = load_cost_model("sloweave-paper"), Objectives(), Memory(blocks=2000)
    _, alone, _ = simulate_cell(cell(**{"memory.blocks": 2000}))
    assert_tables_equal(
        alone, simulate(trace, parse_policy("fcfs+full"), cost, objectives=objectives, cache=bounded.build(trace))
    )
    assert alone.requests["cached_tokens"].sum() > 0
    _, pair, _ = simulate_cell(cell(**{"memory.blocks": 2000, "cluster.replicas": 2, "cluster.router": "round-robin"}))
    policies = [parse_policy("fcfs+full") for _ in range(2)]
    assert_tables_equal(
        pair, simulate_cluster(trace, policies, cost, router="round-robin", memory=bounded, objectives=objectives)
    )
    assert set(pair.requests["replica"].tolist()) == {0, 1}


def test_a_request_larger_than_the_cache_is_rejected_and_the_run_goes_on(cli: Cli, tmp_path: Path) -> None:
    """Peers' case 1: inference-sim#373."""
    trace = requests_at_once(tmp_path, (1000, 4), (100, 4))
    done = cli("simulate", "--trace", trace, "--kv-blocks", "20", "-p", "vllm-default", "--out", "out", "--json")
    assert done.code == 0
    summary = done.json["summary"]
    assert (summary["arrived"], summary["finished"], summary["rejected"]) == (2, 1, 1)
    assert summary["kv_blocks_max"] == 7
    assert done.json["memory"] == Memory(blocks=20).to_dict()
    requests = pq.read_table(tmp_path / "out" / "requests.parquet").to_pylist()
    assert [r["outcome"] for r in requests] == ["rejected", "finished"]
    reason = "needs 63 blocks of 16 tokens for 1000 prompt and 4 output tokens, but the cache has 19"
    assert reason in requests[0]["reason"]
    assert any(f"1 of 2 requests were rejected; the first: {requests[0]['reason']}" in w for w in done.json["warnings"])


def test_two_that_outgrow_the_cache_are_preempted_and_both_finish(cli: Cli, tmp_path: Path) -> None:
    """Peers' case 2: vllm-project/semantic-router#2890, inference-sim#297."""
    command = ["simulate", "--kv-blocks", "21", "-p", "vllm-default", "--json"]
    summary = cli(*command, "--trace", requests_at_once(tmp_path, (128, 150), (128, 150))).json["summary"]
    assert summary["finished"] == 2
    assert 1 <= summary["preemptions"] <= 3
    assert summary["kv_blocks_max"] <= 20
    summary = cli(*command, "--trace", requests_at_once(tmp_path, (190, 100), (190, 100))).json["summary"]
    assert (summary["finished"], summary["preemptions"]) == (2, 0)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (
            ("--gpu", "l4", "--llm", "llama-3.1-8b", "--mode", "hybrid"),
            MemoryModel(load_llm("llama-3.1-8b"), load_gpu("l4"), "hybrid").max_input_length(),
        ),
        (("--max-input", "500"), 500),
        (("--kv-blocks", "100", "--max-input", "500"), 500),
    ],
)
def test_a_prompt_above_the_longest_input_is_rejected_and_the_run_goes_on(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], most: int
) -> None:
    trace = requests_at_once(tmp_path, (most + 1, 1), (most, 1))
    done = cli("simulate", "--trace", trace, *options, "-p", "fcfs+full", "--json")
    assert (done.json["summary"]["finished"], done.json["summary"]["rejected"]) == (1, 1)
    assert done.json["memory"]["max_input"] == most
    reason = f"a prompt of {most + 1} tokens exceeds the maximum input length of {most}"
    assert f"1 of 2 requests were rejected; the first: {reason}" in done.json["warnings"]


@pytest.mark.usefixtures("no_picture")
def test_tables_show_hits_where_there_is_a_cache_and_jct_where_nobody_decodes(cli: Cli) -> None:
    def shown(workload: str, *options: str) -> tuple[set[str], list[str]]:
        command = ["compare", "--workload", workload, "--limit", "20", "--seeds", "2", "-p", "fcfs+full", *options]
        out = cli(*command).out
        document = cli(*command, "--json").json
        return set(document["policies"]["fcfs+full"]), [h for h in ("P99 TTFT", "P99 JCT", "hits") if h in out]

    plain = {"goodput", "throughput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "ttft_mean_ms"}
    jct = {"jct_mean_ms", "jct_p50_ms", "jct_p99_ms"}
    held = {"hit_rate", "preemptions", "kv_blocks_max"}
    assert shown("chat") == (plain, ["P99 TTFT"])
    assert shown("chat", "--kv-blocks", "500") == (plain | held, ["P99 TTFT", "hits"])
    assert shown("post-recommendation") == (plain | jct, ["P99 JCT"])
    assert shown("post-recommendation", "--kv-blocks", "2000") == (plain | jct | held, ["P99 JCT", "hits"])


@pytest.mark.usefixtures("no_picture")
def test_what_replicas_there_are_is_said(cli: Cli) -> None:
    command = ["--workload", "post-recommendation", "--limit", "8", "-p", "fcfs+full", "--replicas", "2"]
    line = "2 replicas, router user, each with a pool of 2,000 KV blocks of 16 tokens, prefix cache"
    assert line in cli("simulate", *command, "--kv-blocks", "2000").out
    done = cli("compare", *command, "--kv-blocks", "2000", "--no-prefix-cache", "--seeds", "1")
    assert line.replace(", prefix", ", no prefix") in done.out
    by_seed = cli("compare", *command, "--gpu", "l4", "--llm", "llama-3.1-8b", "--mode", "hybrid", "--seeds", "2")
    assert "\nseed 0: 2 replicas, router user, each with a store of 2," in by_seed.out
    document = cli("compare", *command, "--seeds", "1", "--json").json
    assert (document["memory"], document["cluster"]) == (None, {"replicas": 2, "router": "user"})


def test_a_sweep_takes_the_options_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'policies = ["fcfs+full"]\nseeds = 1\n[trace]\nworkload = "post-recommendation"\nlimit = 20\n'
        "[memory]\nprefix_cache = true\n[sweep]\nmemory.blocks = [1100, 4000]\n"
    )
    points = cli("sweep", "grid.toml", "--replicas", "2", "--json").json["points"]
    assert [p["memory.blocks"] for p in points] == [1100, 4000]
    small, large = (p["hit_rate"]["mean"] for p in points)
    assert 0 <= small <= large
    assert large > 0
    (tmp_path / "plain.toml").write_text('policies = ["fcfs+full"]\nseeds = 1\n[trace]\nworkload = "chat"\nlimit = 9\n')
    assert "hit_rate" not in cli("sweep", "plain.toml", "--json").json["points"][0]
    one = cli("sweep", "grid.toml", "--kv-blocks", "3000", "--json").json
    assert (one["runs"], one["axes"]) == (1, {})
    refused = cli("sweep", "plain.toml", "--max-input", "1")
    assert refused.code == 0
    assert "1 of 1 runs (fcfs+full: 1): 9 of 9 requests were rejected; the first: a prompt of" in refused.err


def test_blocks_may_differ_by_seed_only_where_the_longest_prompt_does() -> None:
    cells = planned(**ON_L4, seeds=[0, 1]).cells
    model = MemoryModel(load_llm("llama-3.1-8b"), load_gpu("l4"))
    for c in cells:
        longest = int(np.max(generate("post-recommendation", c.seed, 8).prompt_tokens))
        assert c.memory is not None
        assert c.memory.blocks == model.kv_blocks_after_profile(longest)
    fixed = planned(**ON_L4, **{"memory.max_input": 17_000}, seeds=[0, 1]).cells
    assert fixed[0].memory == fixed[1].memory
