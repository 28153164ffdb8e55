"""Cells: keys that change with everything a run depends on and with nothing else, and traces that seeds decide."""

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import experiments.source
from experiments.axes import Experiment, plan
from experiments.cells import Cell, canonical, hash_of, json_bytes, load_plugins, require_plugins
from experiments.draft import Draft
from experiments.run import prepare
from policies.base import PolicyError
from sim.objectives import MS
from tests.experiments.odd import odd_value
from tests.seeded import cases
from traces.arrivals import poisson
from traces.schema import TraceError
from traces.synthetic import Streams

SHAREGPT = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

PLUGIN = """
from policies import Ordering, register

@register
class Newest(Ordering):
    "The newest first."
    name = "newest"

    def key(self, request):
        return -request.arrival_ns
"""

BASE = {"trace.workload": "chat", "trace.limit": 5, "policies": ["srjf-calibrated:lam=9+full"], "seeds": [0]}


def planned(**values: Any) -> Experiment:
    draft = Draft()
    for key, value in {**BASE, **values}.items():
        if value is not None:
            draft.put(key, value, "test")
    return plan(draft)


def cell(**values: Any) -> Cell:
    return planned(**values).cells[0]


def write_azure(path: Path, rows: int = 6) -> Path:
    lines = [f"2023-11-16 18:15:{i:02d}.0000000,{100 + i},{5 + i}\n" for i in range(rows)]
    path.write_text(AZURE + "".join(lines))
    return path


def test_the_key_changes_with_everything_that_a_run_depends_on(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text(
        '{"kind": "linear", "version": 1, "step_ns": 1, "decode_ns": 1, "per_decode_ns": 1, "prefill_ns": 1, '
        '"per_token_ns": 1}'
    )
    plugin = tmp_path / "newest.py"
    plugin.write_text(PLUGIN)
    changes: list[dict[str, Any]] = [
        {},
        {"trace.workload": "mixed"},
        {"trace.limit": 6},
        {"trace.rate": 50.0},
        {"trace.rate_scale": 2.0},
        {"seeds": [1]},
        {"policies": ["srjf-calibrated:lam=8+full"]},
        {"policies": ["srjf-calibrated:lam=9+fixed:chunk=64"]},
        {"policies": ["srjf-calibrated:lam=9+full+queue-limit"]},
        {"slo": "ttft:7"},
        {"slo": "tpot_p99:7"},
        {"cost_model": str(model)},
        {"policy_cost_model": str(model)},
        {"engine.max_num_seqs": 4},
        {"engine.max_model_len": 4},
        {"engine.horizon": 4.0},
        {"memory.blocks": 40},
        {"memory.blocks": 40, "memory.block_size": 8},
        {"memory.blocks": 40, "memory.prefix_cache": False},
        {"memory.blocks": 40, "memory.regime": "store"},
        {"memory.blocks": 40, "memory.regime": "store", "memory.suffix": "discard"},
        {"memory.prefix_cache": True},
        {"memory.max_input": 4},
        {"hardware.gpu": "l4", "hardware.llm": "llama-3.1-8b"},
        {"hardware.gpu": "l4", "hardware.llm": "llama-3.1-8b", "hardware.mode": "hybrid"},
        {"hardware.gpu": "a100-80", "hardware.llm": "llama-3.1-8b", "cost_model": str(model)},
        {"cluster.replicas": 2},
        {"cluster.replicas": 2, "cluster.router": "round-robin"},
        {"keep": "summary"},
        {"plugins": [str(plugin)]},
    ]
    keys = [cell(**change).key for change in changes]
    assert len(set(keys)) == len(changes)
    for change in changes:
        for each in planned(**{"seeds": [0, 1], **change}).cells:  # which share what their point decides
            assert each.key == hash_of(each.resolved())
    plugin.write_text(PLUGIN.replace("-request", "-2 * request"))
    assert cell(plugins=[str(plugin)]).key not in keys


def test_the_key_is_the_hash_of_what_is_resolved_at_every_point_of_a_sweep() -> None:
    axes = {
        "sweep.tpot": [10.0, 20.0],
        "sweep.lam": [1, 2],
        "sweep.rate": [5.0, 6.0],
        "sweep.policy_cost_model": ["sloweave-paper", "erring:of=sloweave-paper,bias=5%"],
        "sweep.engine.max_num_seqs": [4, 8],
        "sweep.cluster.replicas": [1, 2],
    }
    cells = planned(policies=["srjf-calibrated:lam=9+full", "sloweave"], seeds=[0, 1], **axes).cells
    assert len({cell.key for cell in cells}) == len(cells) == 2**5 * 2 * 3  # sloweave takes no lam
    for each in cells:
        assert each.key == hash_of(each.resolved())


def test_the_key_ignores_names() -> None:
    key = cell().key
    assert cell(name="other").key == key
    assert cell(policies=["prefillonly:lam=9"]).key == key
    assert cell(policies=["srjf-calibrated:lam=9.0+full"]).key == key
    assert cell(**{"trace.rate_scale": 1.0}).key == key
    assert cell(cost_model="sloweave-paper").key == key


def test_the_key_ignores_what_has_no_effect() -> None:
    key = cell().key
    assert cell(**{"cluster.replicas": 1, "cluster.router": "least-loaded"}).key == key
    assert cell(**{"memory.block_size": 8}).key == key
    assert cell(**{"memory.prefix_cache": False}).key == key
    assert cell(**{"memory.cpu_gib": 4.0, "memory.bytes_per_block": 16}).key == key


def test_the_key_is_the_same_in_every_process_and_for_every_hash_seed() -> None:
    code = (
        "from experiments.draft import Draft; from experiments.axes import plan; d = Draft()\n"
        f"for key, value in {BASE!r}.items(): d.put(key, value, 'test')\n"
        "print(plan(d).cells[0].key)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == cell().key


@cases(100, odd_value)
def test_any_value_has_one_strict_json_text(value: Any) -> None:
    def forbid(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(canonical(value), parse_constant=forbid) == json.loads(json_bytes(value), parse_constant=forbid)


def test_numpy_numbers_hash_like_pythons() -> None:
    assert canonical([np.int64(3), np.float64(0.5), np.float64(math.nan)]) == canonical([3, 0.5, None])


def test_a_files_own_arrivals_are_the_same_for_all_seeds(tmp_path: Path) -> None:
    file = str(write_azure(tmp_path / "a.csv"))
    experiment = planned(**{"trace.workload": None, "trace.file": file, "trace.limit": None, "seeds": [4, 5, 6]})
    assert [c.seed for c in experiment.cells] == [4]
    assert "one seed was run and there are no confidence intervals" in experiment.notes[0]
    other = cell(**{"trace.workload": None, "trace.file": file, "trace.limit": None, "seeds": [9]})
    assert other.key == experiment.cells[0].key


def test_one_seed_of_a_file_needs_no_note(tmp_path: Path) -> None:
    file = str(write_azure(tmp_path / "a.csv"))
    assert planned(**{"trace.workload": None, "trace.file": file}).notes == ()


def test_a_rate_gives_a_file_poisson_arrivals_from_the_seeds_own_stream(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(SHAREGPT + "".join(f"{10 + i},{5 + i},{15 + 2 * i},1.0\n" for i in range(8)))
    seeded = planned(
        **{"trace.workload": None, "trace.file": str(file), "trace.rate": 20.0, "trace.limit": 6, "seeds": [0, 3]}
    ).cells
    for c in seeded:
        trace = c.source.load(c.seed)
        assert trace.prompt_tokens.tolist() == [10, 11, 12, 13, 14, 15]
        np.testing.assert_array_equal(trace.arrival_ns, poisson(6, 20.0, Streams.of(c.seed).arrivals))
    assert seeded[0].digest != seeded[1].digest


def test_the_rate_scale_divides_the_gaps(tmp_path: Path) -> None:
    file = str(write_azure(tmp_path / "a.csv"))
    source = cell(**{"trace.workload": None, "trace.file": file, "trace.limit": 4, "trace.rate_scale": 4.0}).source
    assert source.load(0).arrival_ns.tolist() == [0, 250 * MS, 500 * MS, 750 * MS]


def test_a_file_that_changes_is_read_again_and_noticed_during_a_run(tmp_path: Path) -> None:
    file = write_azure(tmp_path / "a.csv")
    values = {"trace.workload": None, "trace.file": str(file), "trace.limit": None}
    before = cell(**values)
    write_azure(file, rows=7)
    assert cell(**values).requests == 7
    # Another process that is given the first cell has read nothing yet.
    experiments.source._load.cache_clear()
    experiments.source._read.cache_clear()
    with pytest.raises(TraceError, match="changed during the run"):
        before.source.load(0)


def test_a_plugin_that_changes_during_a_run_is_noticed(tmp_path: Path) -> None:
    plugin = tmp_path / "newer.py"
    text = PLUGIN.replace("newest", "newer")
    plugin.write_text(text)
    (loaded,) = load_plugins((plugin, plugin))
    assert loaded.sha256 == hashlib.sha256(text.encode()).hexdigest()
    require_plugins((loaded,))
    stale = type(loaded)(str(plugin), "0" * 64)
    with pytest.raises(PolicyError, match="changed during the run"):
        require_plugins((stale,))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"policies": ["sloweave"]}, "policy sloweave: deadline-fill has no TPOT objective D"),
        ({"policies": ["sloweave"], "slo": "tpot_p99:0.5"}, "smaller than any step can be"),
        (
            {"policies": ["sarathi:budget=8"], "engine.max_num_seqs": 9},
            "policy sarathi:budget=8: token-budget: budget=8",
        ),
    ],
)
def test_a_policy_that_cannot_work_is_refused_before_the_run(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyError) as caught:
        prepare(cell(**values))
    assert reason in str(caught.value)
