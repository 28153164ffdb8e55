"""An experiment's configuration: one TOML file, validated, any key overridable.

Values come in layers, each over the one before: the TOML file, the command line's options, then ``--set a.b=c``.
Every error names the layer and the key that it came from.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from costmodels.memory import CHUNK, MODES
from costmodels.parallel import LINKS, PREFIX
from policies.registry import nearest
from sim.memory import Regime
from sim.prefixstore import Suffix
from sim.routers import ROUTERS


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names where it came from and what would be right."""


MOST_SEEDS = 100_000


def _seeds(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not 1 <= value <= MOST_SEEDS:
            raise ValueError(f"the number of seeds should be at least 1 and at most {MOST_SEEDS}")
        return list(range(value))
    if isinstance(value, list | tuple) and len(set(map(repr, value))) != len(value):
        raise ValueError("a seed is listed twice")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_of(known: Sequence[str]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"it should be one of {', '.join(known)}{nearest(str(value), known)}")
        return value

    return BeforeValidator(check)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], BeforeValidator(_seeds), Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceConfig(_Table):
    """``[trace]``: a synthetic workload or a file."""

    workload: str | None = None
    file: Path | None = None
    limit: Annotated[Count, Field(le=2**40)] | None = None
    """The first so many requests of a file; how many a workload has."""
    rate: Positive | None = None
    """Requests per second: of a workload, or of Poisson arrivals that take the place of a file's own."""
    rate_scale: Positive = 1.0
    """How many times as dense arrivals become."""
    format: str | None = None
    """The file's format, where its content does not tell."""
    block_size: Count | None = None
    """Tokens per hash id, where the file does not tell."""


class EngineConfig(_Table):
    """``[engine]``: bounds beside the policy; none by default."""

    max_num_seqs: Count | None = None
    max_model_len: Count | None = None
    horizon: Positive | None = None
    """Seconds after which no step is decided."""
    pipeline_depth: Annotated[Count, Field(le=2)] = 1
    """Steps in flight: 2 decides each while the one before it runs, as vLLM's asynchronous scheduling does."""


class HardwareConfig(_Table):
    """``[hardware]``: what each replica runs on. It gives the cost model and the KV memory where they are not given."""

    gpu: str | None = None
    llm: str | None = None
    mode: Annotated[str, _one_of(MODES)] = "paged"
    """How prompts are prefilled; see :class:`costmodels.memory.MemoryModel`."""
    tp: Count = 1
    """Tensor parallel GPUs per pipeline stage."""
    pp: Count = 1
    """Pipeline stages."""
    link: Annotated[str, _one_of(LINKS)] | None = None
    """Between the GPUs; NVLink by default where the GPU has it."""
    chunk: Annotated[Count, Field(le=10**9 - 1)] = CHUNK
    """Tokens that chunked and hybrid prefilling put through the linear layers at once."""

    @property
    def cost_model(self) -> str | None:
        """The name of the cost model that follows, ``None`` unless both GPU and model are named."""
        if self.gpu is None or self.llm is None:
            return None
        # Hybrid prefilling leaves attention whole; only prompts that are split as a whole pay for it.
        chunk = self.chunk if self.mode == "chunked" else None
        parts = {"llm": self.llm, "gpu": self.gpu, "tp": self.tp, "pp": self.pp, "link": self.link, "chunk": chunk}
        return PREFIX + ",".join(f"{key}={value}" for key, value in parts.items() if value not in (None, 1))


class MemoryConfig(_Table):
    """``[memory]``: KV memory of each replica, in the terms of :class:`sim.memory.Memory`; unlimited without any key.

    What is not given follows from ``[hardware]`` where that names GPU and model.
    """

    blocks: Annotated[int, Field(ge=0, le=2**40, strict=True)] | None = None
    block_size: Annotated[Count, Field(le=2**16)] = 16
    prefix_cache: Annotated[bool, Field(strict=True)] | None = None
    """By default where the number of blocks is known."""
    regime: Annotated[Regime, _one_of(get_args(Regime))] | None = None
    """By default the store for modes that keep the KV of one layer at a time, otherwise the pool."""
    suffix: Annotated[Suffix, _one_of(get_args(Suffix))] = "keep"
    max_input: Annotated[Count, Field(le=2**40)] | None = None
    """Longest prompt in tokens; longer ones are rejected. The profile run sets working memory aside for so many."""
    cpu_gib: Annotated[Positive, Field(le=2**30)] | None = None
    """CPU memory for ``suffix = "offload"``."""
    bytes_per_block: Annotated[Count, Field(le=2**50)] | None = None
    """KV bytes of a block that travel between CPU and GPU."""
    pcie_gb_per_s: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False, strict=True)] | None = None
    pcie_latency_us: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)] | None = None


class ClusterConfig(_Table):
    """``[cluster]``: replicas of the engine, each with a memory of its own, behind a router."""

    replicas: Annotated[Count, Field(le=4096)] = 1
    router: Annotated[str, _one_of(list(ROUTERS))] = "user"


class Config(_Table):
    """A whole experiment: every policy on every seed of the trace, at every point of the sweep."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "experiment"
    trace: TraceConfig = TraceConfig()
    policies: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    plugins: Annotated[tuple[Path, ...], BeforeValidator(_listed)] = ()
    """Python files that register policy parts of one's own."""
    slo: str | None = None
    """``ttft:1000,tpot_p99:25``; without it the workload's own TTFT objective, else none."""
    cost_model: str = "sloweave-paper"
    """By default the one of ``[hardware]``, where that names GPU and model."""
    policy_cost_model: str | None = None
    """What policies believe; by default the engine's own cost model."""
    engine: EngineConfig = EngineConfig()
    hardware: HardwareConfig = HardwareConfig()
    memory: MemoryConfig = MemoryConfig()
    cluster: ClusterConfig = ClusterConfig()
    seeds: Seeds = (0, 1, 2, 3, 4)
    """A number N for seeds 0 to N - 1, or a list."""
    keep: Literal["records", "summary"] = "records"
    """``records`` stores both tables of every cell, ``summary`` only its figures."""


EXCLUSIVE = {"trace.workload": "trace.file", "sweep.policies": "policies", "sweep.seeds": "seeds"}
EXCLUSIVE |= {b: a for a, b in EXCLUSIVE.items()}
"""A later layer's value of one key takes the place of an earlier layer's value of the other."""

SYNONYMS = {"trace.n": "trace.limit"}

SHORT = {
    "rate": "trace.rate",
    "rate_scale": "trace.rate_scale",
    "workload": "trace.workload",
    "lam": "policy.lam",
}
"""Axes that stand for a dotted key of the configuration, or for a parameter of policies."""

PLAIN = {
    "tuple_type": "it should be a list",
    "model_type": "it should be a table",
    "path_type": "it should be a path",
    "too_short": "it should have at least one value",
    "string_pattern_mismatch": "it should be letters, digits, dots, dashes and underscores",
}
"""Plainer words for some of pydantic's error types."""

MOST_TEXT, MOST_DOTS, MOST_BITS = 1 << 20, 16, 256
"""Characters of a TOML file, dots of a key in it, and bits of a number."""

LONGEST = 500
"""Characters of what a message repeats of its input."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
DOTTED = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_DOTS + 1}}}")
"""A key with too many dots, for which the parser takes a time that grows with their square."""

FILE_KEYS = ("trace.file", "cost_model", "policy_cost_model")


class Draft:
    """Values by dotted key as they are collected, and the layer that each is from."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._origins: dict[str, tuple[str, str]] = {}

    def put(self, key: str, value: Any, origin: str, layer: str = "") -> None:
        """Set one key; tables are taken apart.

        Args:
            key: dotted key.
            value: as TOML has it.
            origin: what an error should blame: a file, ``file: key``, or an option.
            layer: values of one layer may not exclude each other; the origin by default.

        Raises:
            ConfigError: if the layer has set another key that excludes this one.
        """
        layer = layer or origin
        key = SYNONYMS.get(key, key)
        if isinstance(value, dict):
            for inner, v in value.items():
                self.put(f"{key}.{inner}", v, origin, layer)
            return
        other = EXCLUSIVE.get(key)
        if other in self._values:
            before, before_layer = self._origins[other]
            if before_layer == layer:
                names = (before, origin) if origin.startswith("--") else (other, key)
                where = "" if origin.startswith("--") else f"{origin}: "
                raise ConfigError(f"{where}{names[0]} and {names[1]} exclude each other; give one of them")
            del self._values[other]
        for axis in (key, *(short for short, long in SHORT.items() if long == key)):
            # A later layer's single value takes the place of an earlier layer's axis.
            if f"sweep.{axis}" in self._values and self._origins[f"sweep.{axis}"][1] != layer:
                del self._values[f"sweep.{axis}"]
        self._values[key] = value
        self._origins[key] = (origin, layer)

    def put_file(self, path: Path) -> None:
        """Add a TOML file. Files that it names are sought beside it, then in the working directory.

        Raises:
            ConfigError: if it cannot be read or is not TOML.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such file{_nearest_file(path)}") from None
        except IsADirectoryError:
            raise ConfigError(f"{path} is a folder; give a TOML file") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not text; give a TOML file") from None
        try:
            data = read_toml(text)
        except ValueError as e:
            raise ConfigError(f"{path} is not valid TOML: {e}") from None
        for key, value in data.items():
            self.put(key, value, str(path))
        for key in FILE_KEYS:
            if isinstance(value := self._values.get(key), str):
                self._values[key] = _beside(path, value)
        if isinstance(plugins := self._values.get("plugins"), list):
            self._values["plugins"] = [_beside(path, p) if isinstance(p, str) else p for p in plugins]

    def put_option(self, option: str, key: str, value: Any) -> None:
        """Set ``key`` from a command-line option, unless the option was not given (``None`` or empty)."""
        if value is not None and value != []:
            self.put(key, value, option, "options")

    def put_set(self, text: str) -> None:
        """Set a key from ``a.b=c``; the value is TOML, or else a bare string.

        Raises:
            ConfigError: if the text has another form.
        """
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not all(p.replace("_", "").isalnum() for p in key.split(".")):
            raise ConfigError(f"--set {text!r} should read key=value, like --set engine.max_num_seqs=64")
        try:
            parsed = read_toml(f"value = {value}")
        except ValueError:
            parsed = {}
        value = parsed["value"] if parsed.keys() == {"value"} else value.strip()
        self.put(key, value, f"--set {key}", "--set")

    def has(self, key: str) -> bool:
        """Return whether a layer has set ``key``."""
        return key in self._values

    def get(self, key: str) -> Any:
        """Return the value of ``key``, ``None`` where no layer has set it."""
        return self._values.get(key)

    def copy(self) -> Draft:
        """Return a draft to change without changing this one."""
        other = Draft()
        other._values, other._origins = dict(self._values), dict(self._origins)
        return other

    def take_axes(self) -> dict[str, tuple[Any, str]]:
        """Remove the keys of ``[sweep]`` and return, by axis, values and origin."""
        axes = {
            k.removeprefix("sweep."): (v, self.origin(k)) for k, v in self._values.items() if k.startswith("sweep.")
        }
        self._values = {k: v for k, v in self._values.items() if not k.startswith("sweep.")}
        return axes

    def finish(self) -> Config:
        """Validate.

        Raises:
            ConfigError: naming the first key that is wrong, and the nearest known one where it is unknown.
        """
        nested: dict[str, Any] = {}
        for key, value in self._values.items():
            *tables, leaf = key.split(".")
            at = nested
            for table in tables:
                at = at.setdefault(table, {})
                if not isinstance(at, dict):
                    raise ConfigError(f"{self.origin(key)}: {table} is a value, not a table, so {key} cannot be set")
            at[leaf] = value
        for key in [k for k in nested if k not in Config.model_fields][1:]:
            del nested[key]  # one is told of, and pydantic takes long over many
        try:
            config = Config.model_validate(nested)
        except ValidationError as e:
            raise ConfigError(self._sentence(e)) from None
        derived = config.hardware.cost_model
        if derived is None or "cost_model" in config.model_fields_set:
            return config
        return config.model_copy(update={"cost_model": derived})

    def origin(self, key: str) -> str:
        """Return the file or option that has set ``key``, for error messages."""
        inside = [k for k in self._origins if k.startswith(f"{key}.")]
        while key not in self._origins and "." in key:
            key = key.rpartition(".")[0]
        return self._origins.get(key if key in self._origins else next(iter(inside), ""), (key, ""))[0]

    def _sentence(self, error: ValidationError) -> str:
        first = error.errors()[0]
        names = [p for p in first["loc"] if isinstance(p, str)]
        key = ".".join(names)
        origin = self.origin(key)
        if first["type"] == "extra_forbidden":
            return f"{_short(origin)}: unknown key {_short(key)}{suggest(names[-1], known_keys(names[:-1]))}"
        message = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        message = PLAIN.get(first["type"], message)
        # An option, or a key of another name, says itself what it is.
        what = origin if origin.startswith("--") or ": " in origin else f"{origin}: {key}"
        return f"{_short(what)} is {_short(repr(first['input']))}, but {_short(message)}"


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML of a configuration's size.

    Raises:
        ValueError: if it is not TOML, too large, or nested too deeply; reading such text would take for ever.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has more than {MOST_TEXT:,} characters")
    if DOTTED.search(text):
        raise ValueError(f"a key has more than {MOST_DOTS} dots")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_values(data, 0)
    return data


def _check_values(value: Any, depth: int) -> None:
    if depth > MOST_DOTS:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, depth + 1)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"a number has more than {MOST_BITS} bits")
    elif isinstance(value, str) and "\0" in value:
        raise ValueError("a text has a zero byte")


def known_keys(tables: Iterable[str] = ()) -> list[str]:
    """Return the keys of a table, of the whole configuration by default."""
    model: Any = Config
    for table in tables:
        model = model.model_fields[table].annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def dotted_keys() -> list[str]:
    """Return every key that a sweep may vary or ``--set`` may set, dotted."""
    tables = ("trace", "engine", "hardware", "memory", "cluster")
    return [k for k in known_keys() if k not in tables] + [f"{t}.{k}" for t in tables for k in known_keys([t])]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X? (known: ...)"``, without the question where nothing is similar."""
    known = list(known)
    return nearest(name, known) + (f" (known: {', '.join(known)})" if known else "")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _nearest_file(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.glob("*.toml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, 1, 0.5)
    return f"; did you mean {folder / near[0]}?" if near else ""


def _beside(config: Path, name: str) -> str:
    beside = config.parent / name
    try:
        return str(beside) if beside.exists() else name
    except OSError:  # such as a name that is too long
        return name
