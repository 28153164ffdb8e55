"""Step times from FLOPs, bytes and efficiencies: one GPU, tensor parallel GPUs, or one stage of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError

FS = 10**6
"""Femtoseconds in a nanosecond."""

MAX_FS = 10**18
"""Largest coefficient, 1,000 s."""


@dataclass(frozen=True)
class PrefillCost(CostModel):
    """A roofline of a step, operator by operator, in whole femtoseconds: the same on every machine.

    With ``t`` tokens in the step (prefill and decode) and ``s`` sequences, the sum of

    - ``host_fs``;
    - ``max(token_fs * t, weights_fs)``, the layers' linear operators: compute, or reading the weights once;
    - ``touch_fs * t``, what lies between them (norms, activation, rotary embedding, quantisation, KV write);
    - ``pair_fs * prefill_pairs``, prefill attention;
    - ``kv_fs`` for each token of context that decodes read;
    - ``max(head_fs * s, head_weights_fs)``, the output head for one token of each sequence;
    - ``hop_fs * t + hop_step_fs``, all-reduces, or handing activations to the next stage.

    An engine that splits prompts into chunks pays ``chunk_pair_fs`` instead of ``pair_fs`` in steps of at least
    ``chunk`` tokens: a step that fills the chunk. Smaller steps cost what they cost in any engine. With ``chunk = 0``
    no step does (whole and hybrid prefill, PrefillOnly §4).

    All coefficients are resolved numbers; :func:`costmodels.parallel.prefill_cost` derives them from data sheets.
    Not modelled: attention of fewer than about 64 queries over a long context, which reads the KV cache at memory
    speed and is dearer than ``pair_fs``; overlap of communication and compute.

    Raises:
        CostModelError: if a coefficient is not a whole number from 0 to ``MAX_FS``, a step would take no time, or a
            full chunk's attention were cheaper than a whole prompt's.
    """

    name: str = "prefill"
    token_fs: int = 0
    weights_fs: int = 0
    touch_fs: int = 0
    pair_fs: int = 0
    kv_fs: int = 0
    head_fs: int = 0
    head_weights_fs: int = 0
    hop_fs: int = 0
    hop_step_fs: int = 0
    host_fs: int = 0
    chunk: int = 0
    chunk_pair_fs: int = 0
    source: str = ""
    """Where the coefficients are from."""

    def __post_init__(self) -> None:
        for field in COEFFICIENTS:
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value <= MAX_FS:
                raise CostModelError(
                    f"cost model {self.name}: {field} is {value!r}; it must be a whole number from 0 to 10**18"
                )
        if not self.token_fs + self.weights_fs + self.host_fs:
            raise CostModelError(f"cost model {self.name}: a step would take no time")
        if self.chunk and self.chunk_pair_fs < self.pair_fs:
            raise CostModelError(
                f"cost model {self.name}: chunk_pair_fs is {self.chunk_pair_fs}, less than pair_fs ({self.pair_fs}); "
                "a step must not get shorter as its chunk fills"
            )

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        return -(-self._step_fs(n_decode, decode_context, n_prefill, prefill_tokens, prefill_pairs) // FS)

    def _step_fs(
        self, n_decode: int, decode_context: int, n_prefill: int, prefill_tokens: int, prefill_pairs: int
    ) -> int:
        tokens = n_decode + prefill_tokens
        sequences = n_decode + n_prefill
        pair_fs = self.chunk_pair_fs if 0 < self.chunk <= tokens else self.pair_fs
        return (
            self.host_fs
            + max(self.token_fs * tokens, self.weights_fs)
            + (self.touch_fs + self.hop_fs) * tokens
            + self.hop_step_fs
            + pair_fs * prefill_pairs
            + self.kv_fs * (decode_context + n_decode)
            + max(self.head_fs * sequences, self.head_weights_fs)
        )

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        first, grows = self._step_fs(n_decode, decode_context, 0, 0, 0), self.kv_fs * n_decode
        if first + grows * steps >= 1 << 62:
            return super().decode_run_ns(n_decode, decode_context, decode_context_max, steps)
        return np.asarray(-(-(first + grows * np.arange(steps, dtype=np.int64)) // FS), dtype=np.int64)

    def stages(self) -> tuple[CostModel, ...]:
        """Return the pipeline's stages: this one alone."""
        return (self,)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "prefill", **{f.name: getattr(self, f.name) for f in fields(self)}}


COEFFICIENTS = tuple(f.name for f in fields(PrefillCost) if f.name not in ("name", "source"))


@dataclass(frozen=True)
class PipelineCost(CostModel):
    """Pipeline parallel stages in tandem; one step passes through all of them, so its time is their sum.

    An engine that runs the stages in tandem takes them one by one from :meth:`stages`; a stage's time includes
    handing its activations on.

    Raises:
        CostModelError: if there are no stages.
    """

    name: str = "pipeline"
    parts: tuple[CostModel, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise CostModelError(f"cost model {self.name}: a pipeline needs at least one stage")

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        return sum(
            part.step_ns(n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs)
            for part in self.parts
        )

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        runs = [part.decode_run_ns(n_decode, decode_context, decode_context_max, steps) for part in self.parts]
        return np.asarray(np.sum(runs, axis=0), dtype=np.int64)

    def stages(self) -> tuple[CostModel, ...]:
        """Return the cost of each stage, first to last."""
        return self.parts

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "pipeline", "name": self.name, "stages": [part.to_dict() for part in self.parts]}
