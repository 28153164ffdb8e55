"""Configurations: layers, overrides, and errors that name where a value came from."""

import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.io import load_cost_model
from experiments.axes import plan
from experiments.cells import canonical
from experiments.config import ConfigError, dotted_keys
from experiments.draft import Draft


def draft(*sets: str) -> Draft:
    made = Draft()
    for text in sets:
        made.put_set(text)
    return made


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        draft(*sets).finish()
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def toml(value: object) -> str:
    """TOML and JSON agree on integers, floats, booleans, strings and lists of these."""
    return json.dumps(value)


@settings(max_examples=50, deadline=None)
@given(st.integers(min_value=1, max_value=2**40))
def test_set_reads_integers(n: int) -> None:
    assert draft(f"trace.limit={toml(n)}").finish().trace.limit == n


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e9))
def test_set_reads_floats_exactly(x: float) -> None:
    assert draft(f"trace.rate={toml(x)}").finish().trace.rate == x


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1), min_size=1))
def test_set_reads_lists_of_strings(texts: list[str]) -> None:
    assert draft(f"policies={toml(texts)}").finish().policies == tuple(texts)


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(categories=["L"], codec="ascii"), min_size=1))
def test_set_takes_bare_strings(word: str) -> None:
    if word in ("inf", "nan", "true", "false"):
        return
    config = draft(f"trace.workload={word}", f"policies={word}").finish()
    assert config.trace.workload == word
    assert config.policies == (word,)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_arbitrary_set_texts_raise_nothing_but_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        draft(text).finish()


@pytest.mark.parametrize("text", ["", "=", "=3", "seeds", "a b=1", "a..b=1", "a.=1", ".a=1", "[sweep]=1"])
def test_set_without_a_key_and_value_is_refused(text: str) -> None:
    assert f"--set {text!r} should read key=value" in refusal(text)


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("polices=[]", "polices", "policies"),
        ("trace.worklod=mixed", "trace.worklod", "workload"),
        ("engine.max_num_seq=3", "engine.max_num_seq", "max_num_seqs"),
        ("trace.n_rate=3", "trace.n_rate", "rate"),
    ],
)
def test_an_unknown_key_names_the_nearest(text: str, key: str, nearest: str) -> None:
    sentence = refusal(text)
    assert f"unknown key {key}; did you mean {nearest}?" in sentence
    assert f"--set {key}" in sentence


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("trace.rate=0", "greater than 0"),
        ("trace.rate=-1", "greater than 0"),
        ("trace.rate=nan", "finite"),
        ("trace.rate=inf", "finite"),
        ("trace.rate_scale=0", "greater than 0"),
        ("trace.limit=0", "greater than or equal to 1"),
        ("trace.limit=true", "integer"),
        ("trace.limit=1.5", "integer"),
        ("trace.limit=many", "integer"),
        ("trace=3", "table"),
        ("seeds=0", "at least 1"),
        ("seeds=-2", "at least 1"),
        ("seeds=1000000000000", "at most"),
        ("seeds=[]", "at least one value"),
        ("seeds=[1,1]", "twice"),
        ("seeds=[1,-1]", "greater than or equal to 0"),
        ("seeds=[1,9223372036854775808]", "less than or equal to 9223372036854775807"),
        (f"seeds={list(range(100_001))}", "at most 100000 seeds"),
        ("engine.max_num_seqs=9223372036854775808", "less than or equal to 9223372036854775807"),
        ("seeds=true", "list"),
        ("seeds=[1,2", "list"),
        ("name=a/b", "letters"),
        ("name=..", "letters"),
        ("keep=all", "'records' or 'summary'"),
        ("engine.horizon=0", "greater than 0"),
        ("hardware.mode=hybird", "did you mean hybrid?"),
        ("hardware.mode=3", "one of paged, chunked"),
        ("hardware.link=pci", "did you mean pcie?"),
        ("hardware.tp=0", "greater than or equal to 1"),
        ("hardware.pp=true", "integer"),
        ("memory.blocks=-1", "greater than or equal to 0"),
        ("memory.block_size=0", "greater than or equal to 1"),
        ("memory.prefix_cache=1", "boolean"),
        ("memory.regime=stor", "did you mean store?"),
        ("memory.suffix=discrad", "did you mean discard?"),
        ("memory.max_input=0", "greater than or equal to 1"),
        ("memory.cpu_gib=inf", "finite"),
        ("memory.cpu_gib=1e300", "less than or equal to"),
        ("memory.pcie_gb_per_s=1e300", "less than or equal to"),
        ("memory.pcie_gb_per_s=1e-12", "greater than or equal to"),
        ("memory.pcie_gb_per_s=nan", "finite"),
        ("memory.pcie_latency_us=nan", "finite"),
        ("memory.pcie_latency_us=1e300", "less than or equal to"),
        ("memory.block_size=1000000000", "less than or equal to 65536"),
        ("hardware.chunk=1000000000000", "less than or equal to"),
        ("memory=16", "table"),
        ("cluster.replicas=0", "greater than or equal to 1"),
        ("cluster.router=round", "did you mean round-robin?"),
        ("plugins=3", "list"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(text: str, reason: str) -> None:
    key, _, _ = text.partition("=")
    sentence = refusal(text)
    assert sentence.startswith(f"--set {key} is ")
    assert reason in sentence


def test_a_number_of_seeds_counts_from_zero() -> None:
    assert draft("seeds=4").finish().seeds == (0, 1, 2, 3)
    assert draft("seeds=[4, 2]").finish().seeds == (4, 2)


def test_layers_lie_over_each_other(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('seeds = 3\ncost_model = "x"\n[trace]\nworkload = "chat"\nrate = 5.0\n')
    made = Draft()
    made.put("seeds", 9, "default")
    made.put_file(file)
    made.put_option("--rate", "trace.rate", 7.0)
    made.put_option("--limit", "trace.limit", None)
    made.put_set("trace.rate=8.0")
    config = made.finish()
    assert config.seeds == (0, 1, 2)
    assert config.trace.rate == 8.0
    assert config.trace.limit is None
    assert config.trace.workload == "chat"


def test_a_later_layer_changes_a_workload_for_a_file_and_back(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[trace]\nworkload = "chat"\n')
    made = Draft()
    made.put_file(file)
    made.put_option("--trace", "trace.file", "x.csv")
    assert made.finish().trace.workload is None
    made.put_set("trace.workload=mixed")
    config = made.finish()
    assert config.trace.file is None
    assert config.trace.workload == "mixed"


def test_one_layer_with_a_workload_and_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[trace]\nworkload = "chat"\nfile = "x.csv"\n')
    with pytest.raises(ConfigError, match=r"a\.toml: trace\.workload and trace\.file exclude each other"):
        Draft().put_file(file)
    made = Draft()
    made.put_option("--workload", "trace.workload", "chat")
    with pytest.raises(ConfigError, match="--workload and --trace exclude each other"):
        made.put_option("--trace", "trace.file", "x.csv")


def test_errors_name_the_file_or_the_option(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[trace]\nrate = 0\n")
    made = Draft()
    made.put_file(file)
    with pytest.raises(ConfigError, match=r"a\.toml: trace\.rate is 0, but it should be greater than 0"):
        made.finish()
    made.put_option("--rate", "trace.rate", -1.0)
    with pytest.raises(ConfigError, match=r"--rate is -1\.0, but it should be greater than 0"):
        made.finish()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"seeds = \n", r"not valid TOML: .*line 1"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"\xff\xfe\x00", "not text"),
        (b"[trace\nrate=1", r"not valid TOML: .*line 1"),
    ],
)
def test_a_broken_file_is_named_with_line_and_column(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"broken\.toml .*{reason}"):
        Draft().put_file(file)


def test_a_missing_file_names_the_nearest_and_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("")
    with pytest.raises(ConfigError, match=r"grd\.toml: there is no such file; did you mean .*grid\.toml\?"):
        Draft().put_file(tmp_path / "grd.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        Draft().put_file(tmp_path)


def test_files_are_sought_beside_the_configuration_first(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    file = tmp_path / "a.toml"
    file.write_text('cost_model = "mine.json"\npolicy_cost_model = "elsewhere.json"\nplugins = ["a.toml", "b.py"]\n')
    made = Draft()
    made.put_file(file)
    config = made.finish()
    assert config.cost_model == str(tmp_path / "mine.json")
    assert config.policy_cost_model == "elsewhere.json"
    assert config.plugins == (tmp_path / "a.toml", Path("b.py"))


LINEAR = '{"kind": "linear", "step_ns": 1, "decode_ns": 1, "per_decode_ns": 1, "prefill_ns": 1, "per_token_ns": 1}'


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files beside a configuration, which is not the working directory."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.json").write_text(LINEAR)
    (folder / "mine.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    (folder / "mine.py").write_text(
        "from policies import Ordering, register\n\n@register\nclass Mine(Ordering):\n"
        '    "Mine."\n    name = "beside"\n\n    def key(self, request):\n        return request.number\n'
    )
    (folder / "sloweave-paper").mkdir()  # no file of this name stands for a model that is shipped
    return folder


SPECS = {
    "mine.json": "{}/mine.json",
    "erring:of=mine.json": "erring:of={}/mine.json",
    "erring:bias=5%,of=mine.json,noise=3%,seed=2": "erring:bias=5%,of={}/mine.json,noise=3%,seed=2",
    "erring:of=./mine.json,bias=5%": "erring:of={}/mine.json,bias=5%",
    "sloweave-paper": "sloweave-paper",
    "erring:of=sloweave-paper,tile=8": "erring:of=sloweave-paper,tile=8",
    "prefill:llm=llama-3.1-8b,gpu=l4": "prefill:llm=llama-3.1-8b,gpu=l4",
    "erring:of=prefill:llm=llama-3.1-8b,gpu=l4,bias=5%": "erring:of=prefill:llm=llama-3.1-8b,gpu=l4,bias=5%",
}
"""What a configuration says of a cost model, and what it means where the files lie in a folder."""


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("key", ["cost_model", "policy_cost_model"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_cost_model_is_found_beside_the_configuration(elsewhere: Path, spec: str, key: str, beside: bool) -> None:
    file = elsewhere / "a.toml"
    if not beside:
        (elsewhere / "mine.json").rename("mine.json")
    file.write_text(f'{key} = "{spec}"\n')
    made = Draft()
    made.put_file(file)
    name = getattr(made.finish(), key)
    assert name == (SPECS[spec].format(elsewhere) if beside else spec)
    load_cost_model(name)


def test_what_names_no_cost_model_is_left_for_the_error_message(elsewhere: Path) -> None:
    for spec in ("erring:of=mine.json,bia=5%", "erring:", "erring:of=erring:of=mine.json", "erring:of=none.json"):
        (elsewhere / "a.toml").write_text(f'cost_model = "{spec}"\n')
        made = Draft()
        made.put_file(elsewhere / "a.toml")
        assert made.finish().cost_model == spec


def test_a_sweep_finds_the_files_of_its_axes_beside_the_configuration(elsewhere: Path) -> None:
    models = ["mine.json", "erring:of=mine.json,bias=5%", "sloweave-paper"]
    (elsewhere / "a.toml").write_text(
        'policies = ["beside+full"]\nplugins = "mine.py"\n[sweep]\n'
        f'cost_model = {json.dumps(models)}\n"trace.file" = ["mine.csv"]\n'
    )
    made = Draft()
    made.put_file(elsewhere / "a.toml")
    cells = plan(made).cells
    assert [dict(cell.point) for cell in cells] == [{"cost_model": m, "trace.file": "mine.csv"} for m in models]
    for cell, model in zip(cells, models, strict=True):
        assert cell.cost == load_cost_model(model.replace("mine.json", str(elsewhere / "mine.json")))
        assert cell.source.file == str(elsewhere / "mine.csv")


def test_what_options_name_is_not_sought_beside_the_configuration(elsewhere: Path) -> None:
    (elsewhere / "a.toml").write_text("seeds = 3\n")
    made = Draft()
    made.put("cost_model", "mine.json", "default")
    made.put_file(elsewhere / "a.toml")
    assert made.finish().cost_model == "mine.json"
    made.put_set("sweep.policy_cost_model=['mine.json']")
    assert made.sought("sweep.policy_cost_model", "mine.json") == "mine.json"


SETTINGS = {
    "name": ("other", "other"),
    "policies": ('["a+b"]', ("a+b",)),
    "plugins": ('["a.py"]', (Path("a.py"),)),
    "slo": ("ttft:5", "ttft:5"),
    "cost_model": ("a.json", "a.json"),
    "policy_cost_model": ("b.json", "b.json"),
    "seeds": ("[3]", (3,)),
    "keep": ("summary", "summary"),
    "trace.workload": ("chat", "chat"),
    "trace.file": ("a.csv", Path("a.csv")),
    "trace.limit": ("7", 7),
    "trace.rate": ("7.5", 7.5),
    "trace.rate_scale": ("2", 2.0),
    "trace.format": ("azure", "azure"),
    "trace.block_size": ("16", 16),
    "engine.max_num_seqs": ("8", 8),
    "engine.max_model_len": ("9", 9),
    "engine.horizon": ("1.5", 1.5),
    "engine.pipeline_depth": ("2", 2),
    "hardware.gpu": ("l4", "l4"),
    "hardware.llm": ("llama-3.1-8b", "llama-3.1-8b"),
    "hardware.mode": ("hybrid", "hybrid"),
    "hardware.tp": ("2", 2),
    "hardware.pp": ("3", 3),
    "hardware.link": ("nvlink", "nvlink"),
    "hardware.chunk": ("512", 512),
    "memory.blocks": ("0", 0),
    "memory.block_size": ("8", 8),
    "memory.prefix_cache": ("false", False),
    "memory.regime": ("store", "store"),
    "memory.suffix": ("offload", "offload"),
    "memory.max_input": ("17000", 17000),
    "memory.cpu_gib": ("1.5", 1.5),
    "memory.bytes_per_block": ("2097152", 2097152),
    "memory.pcie_gb_per_s": ("12.5", 12.5),
    "memory.pcie_latency_us": ("0", 0.0),
    "cluster.replicas": ("4", 4),
    "cluster.router": ("prefix-affinity", "prefix-affinity"),
}


def test_every_key_can_be_set() -> None:
    assert SETTINGS.keys() == set(dotted_keys())
    for key, (text, expected) in SETTINGS.items():
        value: object = draft(f"{key}={text}").finish()
        for name in key.split("."):
            value = getattr(value, name)
        assert value == expected


def test_infinite_and_missing_values_do_not_reach_json() -> None:
    assert canonical({"b": math.inf, "a": [math.nan, -math.inf, (1, 2.5)]}) == b'{"a":[null,"-inf",[1,2.5]],"b":"inf"}'
