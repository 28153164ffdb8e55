"""What a user gives the scheduler through ``--additional-config '{"prefillsim": {...}}'``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodels.base import CostModel, CostModelError
from costmodels.io import load_cost_model
from policies.base import Chunking, Policy, PolicyError
from policies.registry import load_plugin, nearest
from policies.spec import parse_policy
from policies.units import ns_from_ms
from sim.objectives import ObjectiveError, Objectives

KEY = "prefillsim"


class SettingsError(ValueError):
    """Settings that cannot be used; the message names the key and what would be right."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a :class:`gpu_runner.scheduler.PolicyScheduler`."""

    policy: str
    """A policy string, like ``sloweave:tpot=25``."""
    cost_model: str | None = None
    """Name or file of what the policy believes; policies without predictions need none."""
    slo: str = ""
    """Objectives of requests that bring none, like ``ttft:1000,tpot_p99:25``."""
    plugins: tuple[str, ...] = ()
    """Files that register policies of your own."""
    discard: bool = False
    """Forget, when a prefill-only request finishes, blocks that nobody else can reuse."""
    telemetry: str | None = None
    """Folder for a row per step and per request, in parquet."""
    prometheus: bool = True
    """Export gauges and counters, where prometheus_client is installed."""
    record: bool = False
    """Keep the whole run in memory, as replay and the oracle need it."""

    @classmethod
    def of(cls, additional: Any) -> Settings:
        """Read vLLM's ``additional_config``.

        Raises:
            SettingsError: if there is nothing for prefillsim, or a key is unknown or of the wrong type.
        """
        given = additional.get(KEY) if isinstance(additional, Mapping) else None
        if not isinstance(given, Mapping) or "policy" not in given:
            raise SettingsError(
                f'the scheduler has no policy: give --additional-config \'{{"{KEY}": {{"policy": "sloweave:tpot=25", '
                f'"cost_model": "a100-llama3.1-8b"}}}}\''
            )
        known = {f.name: f.type for f in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise SettingsError(
                    f"{KEY}.{name} is not a setting of the scheduler{nearest(str(name), list(known))} "
                    f"(settings: {', '.join(known)})"
                )
            if not _fits(value, str(known[name])):
                raise SettingsError(f"{KEY}.{name} is {value!r}, but should be {_MEANING[str(known[name])]}")
        return cls(**{**given, "plugins": tuple(given.get("plugins", ()))})

    def build(self) -> tuple[Policy, CostModel | None]:
        """Return the policy and what it believes, not reset.

        Raises:
            SettingsError: if they cannot be made, or the policy needs a cost model and has none.
        """
        try:
            for plugin in self.plugins:
                load_plugin(plugin)
            policy = parse_policy(self.policy)
            predictor = None if self.cost_model is None else load_cost_model(self.cost_model)
        except (PolicyError, CostModelError) as e:
            raise SettingsError(str(e)) from None
        if predictor is None and policy.needs_predictor:
            raise SettingsError(f"policy {self.policy} predicts steps: give {KEY}.cost_model, a name or a JSON file")
        return policy, predictor

    def objectives(self) -> Objectives:
        """Return the objectives of requests that bring none.

        Raises:
            SettingsError: if ``slo`` cannot be read.
        """
        try:
            return Objectives.parse(self.slo)
        except ObjectiveError as e:
            raise SettingsError(str(e).replace("--slo", f"{KEY}.slo")) from None

    def seats(self, chunking: Chunking, most: int, length: int, budget: int) -> int:
        """Return how many requests may run at once: ``most``, or fewer where the policy says so.

        Args:
            chunking: the policy's.
            most: vLLM's ``--max-num-seqs``.
            length: tokens of the longest request, its ``--max-model-len``.
            budget: tokens that its buffers hold, its ``--max-num-batched-tokens``.

        Raises:
            SettingsError: if the policy cannot do with so many, or may put more tokens into a step than there is room.
        """
        try:
            seats = chunking.seat_limit(most)
        except PolicyError as e:
            raise SettingsError(f"policy {self.policy}: {e}") from None
        seats = most if seats is None else min(seats, most)
        needed = chunking.step_limit(seats, length)
        if needed > budget:
            raise SettingsError(
                f"policy {self.policy} may put {needed} tokens into a step of {seats} requests of up to "
                f"{length} tokens, but --max-num-batched-tokens is {budget}: raise it to {needed}, or lower "
                "--max-num-seqs or --max-model-len"
            )
        return seats


_MEANING = {
    "str": "text",
    "str | None": "text",
    "bool": "true or false",
    "tuple[str, ...]": "a list of file names",
}


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind.startswith("tuple"):
        return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
    return isinstance(value, str) or (value is None and kind.endswith("None"))


@dataclass(frozen=True)
class Wishes:
    """What one request brings along, in vLLM's ``SamplingParams.extra_args`` (``vllm_xargs`` over HTTP)."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    tenant: str | None = None
    session: str | None = None
    keep_tokens: int | None = None
    """Leading prompt tokens that later requests will share; see ``discard``."""

    @classmethod
    def of(cls, extra: Mapping[str, Any] | None) -> Wishes:
        """Read ``prefillsim_ttft_ms``, ``_tpot_ms``, ``_tenant``, ``_session`` and ``_keep_tokens``.

        Raises:
            SettingsError: if one of them is not what it should be.
        """
        if not extra:
            return NO_WISHES

        def number(name: str) -> float | None:
            value = extra.get(f"{KEY}_{name}")
            if value is None:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                raise SettingsError(f"{KEY}_{name} is {value!r}, but should be a positive number")
            return value

        ttft, tpot, keep = number("ttft_ms"), number("tpot_ms"), number("keep_tokens")
        tenant, session = extra.get(f"{KEY}_tenant"), extra.get(f"{KEY}_session")
        return cls(
            None if ttft is None else ns_from_ms(ttft),
            None if tpot is None else ns_from_ms(tpot),
            None if tenant is None else str(tenant),
            None if session is None else str(session),
            None if keep is None else int(keep),
        )


NO_WISHES = Wishes()
