"""vLLM's one pool of KV blocks, in runs instead of blocks."""

from __future__ import annotations

from sim.blocks import PrefixTable, too_long
from sim.content import ContentTree
from sim.least import FAR
from sim.numbers import as_list
from sim.runs import FreeRuns, Run, RunStretch


class _Holding:
    """What a running request holds."""

    __slots__ = ("blocks", "full", "level", "runs")

    def __init__(self) -> None:
        self.runs: list[tuple[Run, int]] = []
        """Runs in the order of their content, each with the block up to which it was taken; see :meth:`Run.rest`."""
        self.blocks = 0
        self.full = 0
        """Leading blocks that are full, hence in ``runs``."""
        self.level = 0
        """Stretches of its path that are behind."""


class BlockPool(PrefixTable[RunStretch]):
    """The block pool and prefix cache of vLLM 0.32 (:class:`sim.kvcache.KVCache`), equal to it block by block.

    Blocks that are not full are interchangeable, so those nobody holds are a number; full ones are runs of content
    that are split where a hit or an eviction ends. A request that computes a block which is there already has its own
    copy, and a hit takes the oldest. What a request decodes becomes known when it finishes: nobody else could have
    hit it before.

    Args:
        tree: the content of the trace, in blocks.
        blocks: size of the pool, of which vLLM never gives out one (its null block), so at least 2; ``None`` for
            unlimited memory, which never evicts.
        prefix_cache: whether full blocks can be hit.
        max_input: longest prompt in tokens; longer ones are refused.
    """

    tracks = paged = True

    def __init__(
        self, tree: ContentTree, blocks: int | None, *, prefix_cache: bool = True, max_input: int | None = None
    ) -> None:
        super().__init__(tree, RunStretch)
        self.capacity = FAR if blocks is None else blocks - 1
        self.free = self.capacity
        self.stall_ns = 0
        self._caching = prefix_cache
        self._max_input = max_input
        self._prompts = as_list(tree.trace.prompt_tokens)
        self._outputs = as_list(tree.trace.output_tokens)
        self._blank = self.capacity  # free blocks without content
        self._unheld = FreeRuns()
        self._holdings: dict[int, _Holding] = {}
        self._turn = 0

    def refusal(self, index: int) -> str | None:
        """See :meth:`sim.kvcache.KVCache.refusal`."""
        prompt, output = self._prompts[index], self._outputs[index]
        if (reason := too_long(prompt, self._max_input)) is not None:
            return reason
        needed = -(-(prompt + output - 1) // self.block_size)
        if needed > self.capacity:
            return (
                f"needs {needed} blocks of {self.block_size} tokens for {prompt} prompt and {output} output tokens, "
                f"but the cache has {self.capacity}"
            )
        return None

    def hit_tokens(self, index: int, tokens: int) -> int:
        """See :meth:`sim.kvcache.KVCache.hit_tokens`."""
        size = self.block_size
        return min(self.depth(index), (tokens - 1) // size) * size

    def fits(self, index: int, tokens: int, reserve: int) -> bool:
        """See :meth:`sim.kvcache.KVCache.fits`."""
        lacking = -(-tokens // self.block_size) - (self.free - reserve)
        if lacking <= 0:
            return True
        for run, lo, hi in self._hits(index, tokens):
            if run.holders:
                lacking -= hi - lo
                if lacking <= 0:
                    return True
        return False

    def start(self, index: int, tokens: int, now: int) -> int:
        """See :meth:`sim.kvcache.KVCache.start`."""
        holding = self._holdings[index] = _Holding()
        full = 0
        for run, lo, hi in self._hits(index, tokens):
            holding.runs.append((self._hold(run, lo, hi), hi))
            full = hi
        holding.full = holding.blocks = full
        return full * self.block_size

    def missing(self, index: int, computed: int) -> int:
        """See :meth:`sim.kvcache.KVCache.missing`."""
        return max(0, -(-computed // self.block_size) - self._holdings[index].blocks)

    def extend(self, index: int, computed: int) -> None:
        """See :meth:`sim.kvcache.KVCache.extend`."""
        holding = self._holdings[index]
        needed = -(-computed // self.block_size)
        if needed > holding.blocks:
            self.take(needed - holding.blocks)
            holding.blocks = needed
        full = computed // self.block_size
        if full > holding.full and self._caching:
            self._enter(index, holding, full)

    def take(self, blocks: int) -> None:
        """See :meth:`sim.kvcache.KVCache.take`."""
        self.free -= blocks
        self._blank -= blocks
        if self._blank < 0:
            self._evict(-self._blank)
            self._blank = 0

    def finish(self, index: int, computed: int, known: int | None = None) -> None:
        """See :meth:`sim.kvcache.KVCache.finish`."""
        holding = self._holdings.pop(index)
        blocks, full = -(-computed // self.block_size), (computed if known is None else known) // self.block_size
        if not self._caching:
            self.free += blocks
            self._blank += blocks
            return
        if full > holding.full:
            self._enter(index, holding, full)
        self.free += blocks - full
        self._blank += blocks - full
        for run, hi in reversed(holding.runs):
            if run.hi == hi:
                self._release(run)
            else:
                for piece in reversed(_pieces(run, hi)):
                    self._release(piece)

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        """Do nothing: all blocks there are, are in GPU memory."""

    def _hits(self, index: int, tokens: int) -> list[tuple[Run, int, int]]:
        limit = (tokens - 1) // self.block_size
        found: list[tuple[Run, int, int]] = []
        for at in self.path(index):
            if at.lo >= limit or at.depth == at.lo:
                return found
            found += at.oldest(limit)
            if at.depth < at.hi:
                return found
        own = self._own.get(index)
        return found if own is None else found + own.oldest(limit)

    def _hold(self, run: Run, lo: int, hi: int) -> Run:
        """Hold blocks ``lo`` to ``hi`` of a run; the others stay where they are."""
        if run.holders:
            if run.lo < lo:
                run = _split_held(run, lo)
            if hi < run.hi:
                _split_held(run, hi)
            run.holders += 1
            return run
        self.free -= hi - lo
        return self._split_unheld(run, lo, hi)

    def _split_unheld(self, run: Run, lo: int, hi: int) -> Run:
        """Take blocks ``lo`` to ``hi`` out of a run that nobody holds, which keeps its place in the order."""
        if run.lo == lo and run.hi == hi:
            self._unheld.remove(run)
            run.holders = 1
            return run
        at = run.at
        assert at is not None
        if run.lo < lo and hi < run.hi:
            low = Run(at, run.lo, lo, run.turn, 0)
            at.insert(low)
            self._unheld.insert_after(run, low)
        taken = Run(at, lo, hi, run.turn, 1)
        at.runs.remove(run)
        if hi < run.hi:
            run.lo = hi
        else:
            run.hi = lo
        at.insert(taken)
        at.insert(run)
        return taken

    def _enter(self, index: int, holding: _Holding, full: int) -> None:
        """Make the blocks up to ``full`` of what a request holds known as content."""
        path = self.path(index)
        runs = holding.runs
        lo = holding.full
        holding.full = full
        while lo < full:
            if holding.level < len(path):
                at = path[holding.level]
                if lo >= at.hi:
                    holding.level += 1
                    continue
            else:
                at = self.own(index, FAR)
            hi = min(full, at.hi)
            last = None
            if runs:
                last = first = runs[-1][0]
                while last.hi < lo:
                    assert last.rest is not None
                    last = last.rest
            if last is not None and last.at is at and last.holders == 1 and lo == at.depth:
                # Nothing that is there lies beyond it, so whatever copies come are younger.
                last.hi = hi
                runs[-1] = (first, hi)
            else:
                self._turn += 1
                run = Run(at, lo, hi, self._turn, 1)
                at.insert(run)
                runs.append((run, hi))
            at.blocks += hi - lo
            if hi > at.depth:
                at.depth = hi
                if at.watchers:
                    self._changed[at] = None
            lo = hi

    def _release(self, run: Run) -> None:
        run.holders -= 1
        if not run.holders:
            run.rest = None
            self.free += run.hi - run.lo
            self._unheld.append(run)

    def _evict(self, blocks: int) -> None:
        while blocks:
            run = self._unheld.first()
            at = run.at
            if at is None:
                raise RuntimeError(f"{blocks} more blocks were taken than are free")
            end = run.hi
            eaten = min(blocks, end - run.lo)
            blocks -= eaten
            at.blocks -= eaten
            run.hi -= eaten
            if run.hi == run.lo:
                self._unheld.remove(run)
                at.runs.remove(run)
            if end == at.depth:
                at.depth = max([r.hi for r in at.runs], default=at.lo)
                if at.watchers and at.depth < end:
                    self._changed[at] = None
                if not at.runs and at.owner >= 0:
                    del self._own[at.owner]


def _pieces(run: Run, hi: int) -> list[Run]:
    """Return the runs into which what was taken as one, up to block ``hi``, has been split since."""
    pieces = [run]
    while run.hi < hi:
        assert run.rest is not None
        run = run.rest
        pieces.append(run)
    return pieces


def _split_held(run: Run, block: int) -> Run:
    """Cut a held run in two, and return the second part; all its holders hold both."""
    at = run.at
    assert at is not None
    rest = Run(at, block, run.hi, run.turn, run.holders)
    rest.rest, run.rest, run.hi = run.rest, rest, block
    at.insert(rest)
    return rest
