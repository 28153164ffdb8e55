"""All mutants, and which tests look for a mistake in which file."""

from __future__ import annotations

from tests.mutation import in_engine, in_figures, in_memory, in_policies
from tests.mutation.mutant import Mutant

MUTANTS: list[Mutant] = [*in_policies.MUTANTS, *in_memory.MUTANTS, *in_engine.MUTANTS, *in_figures.MUTANTS]

CHUNKS = (
    "engine/test_one_prefill.py",
    "policies/test_chunkings.py",
    "policies/test_guarded.py",
    "engine/test_deadline_fill.py",
)
POOL = ("sim/test_pool.py", "sim/test_prefixstore.py")
ENGINE = (
    "engine/test_cases.py",
    "engine/test_reference.py",
    "engine/test_memory.py",
    "engine/test_depth.py",
    "engine/test_cluster.py",
    "engine/test_invariants.py",
    "engine/test_refusals.py",
    "sim/test_store.py",
)
METRICS = ("sim/test_metrics_objectives.py", "sim/test_metrics_reference.py", "sim/test_metrics_cases.py")

TESTS: dict[str, tuple[str, ...]] = {
    "costmodels/": ("costmodels/test_models.py", "engine/test_deadline_fill.py"),
    "policies/chunking/": CHUNKS,
    "policies/ordering/": ("policies/test_orderings.py", "policies/test_calibrated.py", "engine/test_orderings.py"),
    "policies/queue.py": ("policies/test_queue.py", "policies/test_calibrated.py"),
    "policies/admission.py": ("policies/test_admission.py",),
    "policies/units.py": ("policies/test_chunkings.py", "policies/test_orderings.py", "sim/test_metrics_objectives.py"),
    "policies/views.py": ("engine/test_one_prefill.py", "policies/test_orderings.py", "engine/test_cases.py"),
    "policies/spec.py": ("policies/test_spec.py", "policies/test_plugins.py"),
    "policies/registry.py": ("policies/test_plugins.py", "policies/test_spec.py"),
    "sim/pool.py": ("sim/test_pool.py", "engine/test_depth.py"),
    "sim/runs.py": POOL,
    "sim/blocks.py": POOL,
    "sim/content.py": ("sim/test_content.py",),
    "sim/prefix": ("sim/test_prefixstore.py",),
    "sim/kvcache.py": ENGINE,
    "sim/paging.py": ("engine/test_memory.py", "engine/test_depth.py", "engine/test_memory_invariants.py"),
    "sim/metrics.py": METRICS,
    "sim/objectives.py": ("sim/test_objectives_deadline.py", *METRICS),
    "sim/window.py": ("sim/test_objectives_deadline.py", "sim/test_window.py"),
    "sim/stats.py": ("sim/test_percentile_halves.py", "sim/test_stats_series.py", "sim/test_stats.py"),
    "sim/tables.py": ("sim/test_metrics_reference.py", *ENGINE),
    "sim/gaps.py": ("sim/test_metrics_reference.py", *ENGINE),
    "sim/departures.py": (*ENGINE, "engine/test_pipelines.py"),
    "sim/": ENGINE,
}
"""By the beginning of a file's path, the test modules that are run in this order until one fails; the longest wins."""


def modules_for(mutant: Mutant) -> list[str]:
    """Return the test modules for a mutant."""
    longest = max((start for start in TESTS if mutant.file.startswith(start)), key=len)
    return [f"tests/{name}" for name in TESTS[longest]]
