"""The tiny model on disk, and how engine options and errors are read, without vLLM."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path

import pytest

from gpu_runner.described import plain
from gpu_runner.engine import EngineError, EngineOptions, _reason, open_engine
from gpu_runner.model import tiny_llama, vocabulary


def test_equal_arguments_make_equal_bytes(tmp_path: Path) -> None:
    a, b = (tiny_llama(tmp_path / name, layers=2) for name in "ab")
    for file in a.iterdir():
        assert file.read_bytes() == (b / file.name).read_bytes()


@pytest.mark.parametrize("vocab", [258, 300, 1024, 9094])
def test_tokenizer_and_model_have_one_vocabulary(tmp_path: Path, vocab: int) -> None:
    folder = tiny_llama(tmp_path / "m", vocab=vocab)
    assert vocabulary(str(folder)) == vocab
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert sorted(model["vocab"].values()) == list(range(vocab))
    assert len(model["merges"]) == vocab - 258
    assert all(a + b in model["vocab"] and a in model["vocab"] and b in model["vocab"] for a, b in model["merges"])


def test_shapes_go_together(tmp_path: Path) -> None:
    config = json.loads((tiny_llama(tmp_path, layers=3, hidden=128, max_len=99) / "config.json").read_text())
    assert config["num_hidden_layers"] == 3
    assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"] == 128
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["max_position_embeddings"] == 99


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="258 to 9094 tokens, not 257"):
        tiny_llama(tmp_path / "m", vocab=257)
    with pytest.raises(ValueError, match="multiple of 64, not 100"):
        tiny_llama(tmp_path / "m", hidden=100)
    assert not (tmp_path / "m").exists()


def test_a_folder_without_configuration_has_no_known_vocabulary(tmp_path: Path) -> None:
    assert vocabulary("no/such") is None
    for content in ("", "[]", '{"vocab_size": "x"}'):
        (tmp_path / "config.json").write_text(content)
        assert vocabulary(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 7}}')
    assert vocabulary(str(tmp_path)) == 7


def test_options_that_were_not_given_are_left_to_vllm() -> None:
    options = EngineOptions("m", max_num_seqs=4, more={"seed": 9, "tensor_parallel_size": 2})
    arguments = options.arguments(on_cpu=True)
    assert arguments == {
        "model": "m",
        "dtype": "auto",
        "load_format": "auto",
        "max_num_seqs": 4,
        "enforce_eager": True,
        "additional_config": {},
        "seed": 9,
        "tensor_parallel_size": 2,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    assert options.arguments(on_cpu=False)["enforce_eager"] is False
    assert dataclasses.replace(options, enforce_eager=True).arguments(on_cpu=False)["enforce_eager"] is True


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runner.engine.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"needs vLLM.*prefillsim\[gpu\]"):
        open_engine(EngineOptions("m"))


def test_of_an_error_the_first_sentence_counts() -> None:
    pydantic = "1 validation error for C\n  Value error, a (16) is below b (32). Raise it. [type=x, y]\n  For further"
    assert _reason(ValueError(pydantic)) == "a (16) is below b (32)"
    assert _reason(RuntimeError("\nOut of memory.\nmore")) == "Out of memory"
    assert _reason(RuntimeError()) == "RuntimeError"


def test_a_configuration_becomes_json() -> None:
    class Colour(Enum):
        RED = 1

    @dataclasses.dataclass
    class Inner:
        values: set[int]
        scale: float = float("inf")

    described = plain({"a": Inner({2, 1}), 3: (None, True, Colour.RED, Path("x"), Inner)})
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["a"] == {"values": [1, 2], "scale": "inf"}
    assert described["3"][:2] == [None, True]
    assert "Inner" in described["3"][4]
