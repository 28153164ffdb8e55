"""How to make a run or a sweep again: the command line, or the file, that its own record describes."""

from __future__ import annotations

import json
import math
import shlex
from functools import lru_cache
from typing import Any

from costmodels.io import load_cost_model, shipped_models
from experiments.cells import hash_of
from experiments.config import Config, HardwareConfig
from experiments.recorded import Described, Swept
from policies.units import NS

GIB = 2**30

SWEEP_FILE = "experiment.toml"
COST_FILE = "cost-model.json"


def command_of(run: Described) -> tuple[str, list[str]]:
    """Return the command line that makes a run again, and what must be known beside it."""
    resolved = _table(run.info.get("resolved"))
    notes: list[str] = []
    arguments = ["prefillsim", "replay" if run.host else "simulate", *_trace(_table(run.info.get("trace_source")))]
    if run.seed is not None:
        arguments += ["--seed", str(run.seed)]
    arguments += ["--policy", run.policy, "--slo", str(run.objectives)]
    if run.host:
        arguments += _host(run, notes)
    else:
        arguments += [*_cost(run, resolved, notes), *_limits(_table(resolved.get("engine")))]
        arguments += [*_memory(resolved.get("memory")), *_cluster(resolved)]
    if resolved.get("plugins"):
        notes.append("It used plug-ins, whose hashes are in run.json; name their files with --plugin.")
    if resolved.get("energy") is not None:
        notes.append("Its energy follows from the hardware that was named, which run.json does not keep by name.")
    file = _table(run.info.get("trace_source")).get("file")
    if file is not None:
        notes.append(f"The trace file's hash should be {run.trace_hash}.")
    return shlex.join(arguments), notes


def _trace(source: dict[str, Any]) -> list[str]:
    found = []
    for option, key in (
        *(("--workload", "workload"), ("--trace", "file"), ("--limit", "limit"), ("--rate", "rate")),
        *(("--format", "format"), ("--block-size", "block_size")),
    ):
        if source.get(key) is not None:
            found += [option, str(source[key])]
    if source.get("rate_scale") not in (None, 1, 1.0):
        found += ["--rate-scale", str(source["rate_scale"])]
    return found


def _cost(run: Described, resolved: dict[str, Any], notes: list[str]) -> list[str]:
    found = []
    for option, key in (("--cost-model", "cost_model"), ("--policy-cost-model", "policy_cost_model")):
        model = resolved.get(key)
        if not isinstance(model, dict):
            continue
        name = _name_of(model)
        if name is not None:
            found += [option, name]
        else:
            file = COST_FILE if key == "cost_model" else f"policy-{COST_FILE}"
            found += [option, file]
            notes.append(f"{file} is what {run.path.name}/run.json has under resolved.{key}.")
    return found


def _name_of(model: dict[str, Any]) -> str | None:
    """Return the name of the shipped cost model that is the very same, ``None`` if none is."""
    own, wanted = model.get("name"), hash_of(model)
    if own in shipped_models() and hash_of(load_cost_model(str(own)).to_dict()) == wanted:
        return str(own)
    return _shipped().get(wanted)


@lru_cache(maxsize=1)
def _shipped() -> dict[str, str]:
    """Return the names of shipped cost models by the hash of what they are."""
    return {hash_of(load_cost_model(name).to_dict()): name for name in shipped_models()}


def _limits(engine: dict[str, Any]) -> list[str]:
    found = []
    for option, key in (("--max-num-seqs", "max_num_seqs"), ("--max-model-len", "max_model_len")):
        if isinstance(engine.get(key), int):
            found += [option, str(engine[key])]
    if isinstance(engine.get("horizon_ns"), int):
        found += ["--horizon", repr(engine["horizon_ns"] / NS)]
    if engine.get("pipeline_depth") not in (None, 1):
        found += ["--pipeline-depth", str(engine["pipeline_depth"])]
    return found


def _memory(given: Any) -> list[str]:
    if not isinstance(given, dict):
        return []
    found = []
    for option, key in (("--kv-blocks", "blocks"), ("--kv-block-size", "block_size"), ("--memory", "regime")):
        if given.get(key) is not None:
            found += [option, str(given[key])]
    found.append("--prefix-cache" if given.get("prefix_cache") else "--no-prefix-cache")
    if given.get("suffix") not in (None, "keep"):
        found += ["--suffix", str(given["suffix"])]
    if given.get("max_input") is not None:
        found += ["--max-input", str(given["max_input"])]
    blocks, size = given.get("cpu_blocks"), given.get("bytes_per_block")
    if isinstance(blocks, int) and isinstance(size, int) and blocks > 0 and size > 0:
        # Half a block more than there are, lest the division round one away.
        for key, value in (
            ("cpu_gib", (blocks + 0.5) * size / GIB),
            ("bytes_per_block", size),
            ("pcie_gb_per_s", _number(given.get("pcie_bytes_per_s")) / 1e9),
            ("pcie_latency_us", _number(given.get("pcie_latency_ns")) / 1e3),
        ):
            found += ["--set", f"memory.{key}={value!r}"]
    return found


def _cluster(resolved: dict[str, Any]) -> list[str]:
    replicas = resolved.get("replicas")
    if replicas in (None, 1):
        return []
    return ["--replicas", str(replicas), *(["--router", str(resolved["router"])] if resolved.get("router") else [])]


def _host(run: Described, notes: list[str]) -> list[str]:
    pace = _table(run.info.get("replay"))
    found = []
    if run.host == "server":
        server = _table(run.info.get("server"))
        found += ["--server", str(server.get("url", "URL"))]
        notes.append("The server's own policy and options are not known here.")
    else:
        options = _table(_table(run.info.get("engine")).get("options"))
        found += ["--model", str(options.get("model", "DIR"))]
        if run.host == "hybrid":
            found += ["--engine", "hybrid"]
        for option, key in (
            *(("--dtype", "dtype"), ("--load-format", "load_format"), ("--max-num-seqs", "max_num_seqs")),
            *(("--max-model-len", "max_model_len"), ("--max-num-batched-tokens", "max_num_batched_tokens")),
            *(("--kv-blocks", "num_gpu_blocks_override"), ("--kv-block-size", "block_size")),
        ):
            if options.get(key) is not None:
                found += [option, str(options[key])]
        notes.append(
            "A policy that predicts needs the engine's --cost-model; a real engine is never quite as fast twice."
        )
    if pace.get("speed") not in (None, 1, 1.0):
        found += ["--speed", str(pace["speed"])]
    if pace.get("saturate"):
        found.append("--saturate")
    for option, key in (("--warm-up", "warm_up_s"), ("--window", "window_s")):
        if pace.get(key):
            found += [option, str(pace[key])]
    return found


def file_of(sweep: Swept) -> str:
    """Return the TOML file that plans a sweep again; what is so by default is left out."""
    defaults = Config().model_dump(mode="json")
    config = _differing(sweep.config, defaults)
    try:
        derived = HardwareConfig.model_validate(_table(sweep.config.get("hardware"))).cost_model
    except ValueError:
        derived = None
    given = sweep.config.get("cost_model")
    if derived is not None and given is not None:
        # What hardware implies is a default too, and what is a default elsewhere was asked for here.
        config.pop("cost_model", None)
        if given != derived:
            config["cost_model"] = given
    if sweep.axes:
        config["sweep"] = sweep.axes
    return toml(config)


def _differing(given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return what of a table is not as in ``defaults``, and tables where something in them is not."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        own = _differing(value, _table(defaults.get(key))) if isinstance(value, dict) else value
        if own is not None and own != defaults.get(key) and own != {}:
            found[key] = own
    return found


def toml(table: dict[str, Any], prefix: str = "") -> str:
    """Return a table as TOML, values before tables; what TOML has no form for is left out."""
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, dict):
            name = f"{prefix}.{_key(key)}" if prefix else _key(key)
            if value:
                tables.append(f"\n[{name}]\n{toml(value, name)}")
        elif value is not None:
            lines.append(f"{_key(key)} = {_value(value)}\n")
    return "".join([*lines, *tables])


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value if v is not None)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
