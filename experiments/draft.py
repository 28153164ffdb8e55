"""A configuration in the making: values in layers, any key overridable.

The layers lie each over the one before: the TOML file, the command line's options, then ``--set a.b=c``. Every error
names the layer and the key that it came from.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from costmodels.erring import ERRING, with_other
from costmodels.files import read_bounded
from costmodels.io import shipped_models
from experiments.config import Config, ConfigError, known_keys, suggest
from experiments.toml import MOST_TEXT, read_toml

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

LONGEST = 500
"""Characters of what a message repeats of its input."""


def _beside(config: Path, name: str) -> str:
    beside = config.parent / name
    try:
        return str(beside) if beside.exists() else name
    except OSError:  # such as a name that is too long
        return name


def _model_beside(config: Path, name: str) -> str:
    if name.startswith(ERRING):
        return with_other(name, lambda of: _model_beside(config, of))
    return name if name in shipped_models() else _beside(config, name)


FILES: dict[str, Callable[[Path, str], str]] = {
    "trace.file": _beside,
    "plugins": _beside,
    "cost_model": _model_beside,
    "policy_cost_model": _model_beside,
}
"""Keys that may name a file, and how its name becomes that of a file beside the configuration's, if there is one."""


class Draft:
    """Values by dotted key as they are collected, and the layer that each is from."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._origins: dict[str, tuple[str, str]] = {}
        self._files: dict[str, Path] = {}  # by layer

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
            text = read_bounded(path, 4 * MOST_TEXT).decode()
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
        self._files[str(path)] = path
        for key in FILES.keys() & self._values.keys():
            if self._origins[key][1] == str(path):
                self._values[key] = self.sought(key, self._values[key])

    def sought(self, key: str, value: Any) -> Any:
        """Return ``value`` with the files that it names sought beside the TOML file that has set ``key``, if one has.

        Values of axes stay as they are written, so that results name them so wherever they are made; who sets the key
        at a point of the sweep asks here first.
        """
        path = self._files.get(self._origins[key][1])
        seek = FILES.get(key.removeprefix("sweep."))
        if path is None or seek is None:
            return value
        if isinstance(value, list):
            return [seek(path, v) if isinstance(v, str) else v for v in value]
        return seek(path, value) if isinstance(value, str) else value

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
        other._values, other._origins, other._files = dict(self._values), dict(self._origins), dict(self._files)
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


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _nearest_file(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.glob("*.toml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, 1, 0.5)
    return f"; did you mean {folder / near[0]}?" if near else ""
