"""Where requests come from: a workload or a file, the same in every process, and kept as long as it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from experiments.config import ConfigError, TraceConfig
from traces.schema import Trace, TraceError


class Facts(NamedTuple):
    """What is to be known of a trace without keeping it."""

    digest: str
    requests: int
    longest_prompt: int
    longest_output: int


@dataclass(frozen=True)
class TraceSource:
    """Where a cell's requests come from; :meth:`load` gives equal traces in every process."""

    workload: str | None
    file: str | None
    limit: int | None
    rate: float | None
    rate_scale: float
    format: str | None
    block_size: int | None
    stamp: tuple[int, int] | None
    """The file's size and time of change: a file that changes is another source."""

    @classmethod
    def of(cls, config: TraceConfig) -> TraceSource:
        """Read ``[trace]``.

        Raises:
            ConfigError: unless it names exactly one of workload and file.
        """
        if (config.workload is None) == (config.file is None):
            what = "no trace" if config.workload is None else "two traces"
            raise ConfigError(f"{what}: give one of --workload NAME and --trace FILE (trace.workload, trace.file)")
        if config.workload is not None:
            for key in ("format", "block_size"):
                if getattr(config, key) is not None:
                    raise ConfigError(f"trace.{key} describes a file, but the trace is the workload {config.workload}")
        return cls(
            config.workload,
            None if config.file is None else str(config.file),
            config.limit,
            config.rate,
            config.rate_scale,
            config.format,
            config.block_size,
            None if config.file is None else _stamp(config.file),
        )

    @property
    def seeded(self) -> bool:
        """Whether seeds give different traces: a file's own arrivals are the same for all."""
        return self.workload is not None or self.rate is not None

    @property
    def label(self) -> str:
        """The workload's name, or the file's."""
        # A name need not be UTF-8, but tables are.
        return self.workload or Path(self.file or "").name.encode(errors="backslashreplace").decode()

    def load(self, seed: int) -> Trace:
        """Return the trace of a seed.

        Raises:
            TraceError: if there is no such workload, or the file cannot be read.
        """
        return _load(self, seed if self.seeded else 0)

    def facts(self, seed: int) -> Facts:
        """Return what a seed's trace is like; see :meth:`load` for errors."""
        return _facts(self, seed if self.seeded else 0)


@lru_cache(maxsize=4)
def _load(source: TraceSource, seed: int) -> Trace:
    from traces.synthetic import Streams, generate

    if source.workload is not None:
        trace = generate(source.workload, seed, source.limit, source.rate)
    else:
        trace = _read(str(source.file), source.format, source.block_size, source.stamp)
        if not len(trace):
            raise TraceError(f"{source.file}: the trace has no requests")
        if source.limit is not None:
            trace = trace.limit(source.limit)
        if source.rate is not None:
            from traces.arrivals import poisson

            rate, stream = source.rate, Streams.of(seed).arrivals
            trace = trace.with_arrivals(lambda n: poisson(n, rate, stream))
    return trace if source.rate_scale == 1 else trace.scale_rate(source.rate_scale)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None  # reading it says what is wrong
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=2)
def _read(file: str, fmt: str | None, block_size: int | None, stamp: tuple[int, int] | None) -> Trace:
    from traces.io import read_trace

    trace = read_trace(Path(file), fmt=fmt, block_size=block_size)
    if _stamp(Path(file)) != stamp:
        raise TraceError(f"trace {file} changed during the run; start again")
    return trace


@lru_cache(maxsize=4096)
def _facts(source: TraceSource, seed: int) -> Facts:
    trace = source.load(seed)
    longest = (int(column.max(initial=0)) for column in (trace.prompt_tokens, trace.output_tokens))
    return Facts(trace.digest(), len(trace), *longest)
