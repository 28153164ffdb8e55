"""A pytest plugin for runs that end at the first failure: examples are always the same ones, and not made smaller."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("mutants")


def pytest_sessionstart(session: object) -> None:
    """Make sure that the copy is what is tested."""
    import sim

    assert Path(str(sim.__file__)).is_relative_to(Path.cwd()), f"{sim.__file__} is not in the copy {Path.cwd()}"
