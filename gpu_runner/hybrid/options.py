"""How the hybrid engine is started; nothing here needs PyTorch until it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpu_runner.engine import EngineError
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.settings import Settings, SettingsError
from policies.registry import nearest

if TYPE_CHECKING:
    from gpu_runner.hybrid.engine import HybridEngine

NEEDED = ("torch", "transformers")
SERVER_NEEDS = ("fastapi", "uvicorn")
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")


@dataclass(frozen=True)
class HybridOptions:
    """How the hybrid engine is started.

    Attributes:
        model: a folder, a name on the model hub, or with ``load_format="dummy"`` one of ``costmodels.hardware``.
        dtype: of weights and KV; ``auto`` is what the model's configuration says.
        load_format: ``dummy`` for random weights, so that a ``config.json`` suffices.
        device: ``auto`` is CUDA where there is a GPU.
        max_model_len: most tokens of a request, its one output included; as the model's configuration says by default.
        blocks: of the prefix store; by default what a prefill of the longest prompt leaves of ``memory_gib``.
        memory_gib: for working memory and prefix store; by default 90 % of a GPU less the weights, and 2 on a CPU.
        block_size: tokens of a block.
        chunk: tokens that go through the token-wise layers at once; 0: all.
        compiled: whether Inductor compiles those layers.
        seed: of random weights.
    """

    model: str
    dtype: str = "auto"
    load_format: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    blocks: int | None = None
    memory_gib: float | None = None
    block_size: int = 16
    chunk: int = 512
    compiled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("load_format", LOAD_FORMATS)):
            value = getattr(self, name)
            if value not in known:
                raise EngineError(f"unknown {name} {value!r}{nearest(value, known)} ({', '.join(known)})")
        for name, least in (("max_model_len", 2), ("blocks", 0), ("block_size", 1), ("chunk", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise EngineError(f"{name} is {value}; it must be at least {least}")
        if self.memory_gib is not None and not self.memory_gib > 0:
            raise EngineError(f"memory_gib is {self.memory_gib}; it must be positive")

    @classmethod
    def of(cls, more: dict[str, Any], **given: Any) -> HybridOptions:
        """Return options, ``more`` by the names that a user has written.

        Raises:
            EngineError: if one is unknown or of the wrong type.
        """
        known = {f.name: str(f.type) for f in dataclasses.fields(cls)}
        for name, value in more.items():
            if name not in known:
                raise EngineError(
                    f"the hybrid engine has no argument {name}{nearest(name, list(known))} ({', '.join(known)})"
                )
            if not _fits(value, known[name]):
                raise EngineError(f"the hybrid engine's {name} is {value!r}, but should be of type {known[name]}")
        return cls(**{**given, **more})


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return kind.endswith("None")
    wanted = kind.removesuffix(" | None")
    if wanted == "bool" or isinstance(value, bool):
        return wanted == "bool" and isinstance(value, bool)
    if wanted == "float":
        return isinstance(value, int | float)
    return isinstance(value, int if wanted == "int" else str)


def need(names: tuple[str, ...]) -> None:
    """Refuse to go on without packages.

    Raises:
        EngineError: if one is not installed.
    """
    lacking = [name for name in names if find_spec(name) is None]
    if lacking:
        raise EngineError(
            f"the hybrid engine needs {' and '.join(lacking)}, not installed here; pip install 'prefillsim[hybrid]' "
            "brings that"
        )


def open_hybrid(options: HybridOptions, settings: Settings) -> HybridEngine:
    """Start the hybrid engine in this process.

    Raises:
        EngineError: if PyTorch or transformers are not installed, or it cannot start; in one sentence.
    """
    need(NEEDED)
    from gpu_runner.hybrid.engine import HybridEngine

    try:
        return HybridEngine(options, settings)
    except (HybridError, SettingsError) as e:
        raise EngineError(str(e)) from e
