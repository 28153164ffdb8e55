"""Mistakes in KV memory: the pool, its runs and tables, the prefix store.

Left out, for nothing that a run shows depends on them: the order of copies that begin at one block (the oldest is
found by its turn, see ``RunStretch``), entering more than fits (``PrefixLru.enter``; the rest makes room at once), and
a stretch that ends a step early where memory ends (``Paging.steps_that_fit``; that step is then taken singly).
"""

from tests.mutation.mutant import FREE, PREFIX_HIT, RESTORE, Mutant

POOL, RUNS, BLOCKS, CONTENT = "sim/pool.py", "sim/runs.py", "sim/blocks.py", "sim/content.py"
STORE, LRU, CACHE = "sim/prefixstore.py", "sim/prefixlru.py", "sim/kvcache.py"
PAGING = "sim/paging.py"

MUTANTS = [
    Mutant(
        POOL,
        "return min(self.depth(index), (tokens - 1) // size) * size",
        "return min(self.depth(index), tokens // size) * size",
        "at least one token is computed",
        PREFIX_HIT,
    ),
    Mutant(
        POOL,
        "limit = (tokens - 1) // self.block_size",
        "limit = tokens // self.block_size",
        "at least one token is computed",
        PREFIX_HIT,
    ),
    Mutant(
        STORE,
        "limit = (tokens - 1) // self.block_size",
        "limit = tokens // self.block_size",
        "at least one token is computed",
        PREFIX_HIT,
    ),
    Mutant(
        POOL,
        "            self.free += run.hi - run.lo\n            self._unheld.append(run)",
        "            self._unheld.append(run)",
        "released blocks are free again",
        FREE,
    ),
    Mutant(
        POOL,
        "        self.free += blocks - full\n        self._blank",
        "        self._blank",
        "blocks without content are free again",
        FREE,
    ),
    Mutant(
        POOL,
        "            self.free += blocks\n",
        "",
        "blocks are free again without a prefix cache",
        FREE,
    ),
    Mutant(
        STORE,
        "self._gpu.unpin(index, self._pinned.pop(index))",
        "self._pinned.pop(index)",
        "a finished request pins nothing",
        FREE,
    ),
    Mutant(
        POOL, "FAR if blocks is None else blocks - 1", "FAR if blocks is None else blocks", "one block is never given"
    ),
    Mutant(
        POOL,
        "needed = -(-(prompt + output - 1) // self.block_size)",
        "needed = -(-(prompt + output) // self.block_size)",
        "the last output needs no memory",
    ),
    Mutant(POOL, "if needed > self.capacity:", "if needed >= self.capacity:", "a request may fill the pool"),
    Mutant(
        POOL,
        "(self.free - reserve)",
        "self.free",
        "blocks spoken for are not given away",
    ),
    Mutant(
        POOL,
        "            if run.holders:\n                lacking",
        "            if True:\n                lacking",
        "a hit on blocks nobody holds takes them from the free ones",
    ),
    Mutant(
        POOL, "            run.holders += 1\n            return run", "            return run", "holders are counted"
    ),
    Mutant(POOL, "if full > holding.full and self._caching:", "if full > holding.full:", "no prefix cache, no hits"),
    Mutant(
        POOL,
        "for run, hi in reversed(holding.runs):",
        "for run, hi in holding.runs:",
        "a prompt's tail is evicted before its head",
    ),
    Mutant(
        POOL,
        "(computed if known is None else known) // self.block_size",
        "computed // self.block_size",
        "what is not known yet cannot be hit",
    ),
    Mutant(POOL, "run.hi -= eaten", "run.lo += eaten", "eviction begins at the end of a run"),
    Mutant(POOL, "        self.free -= hi - lo\n", "", "a hit takes free blocks"),
    Mutant(
        POOL,
        "                if at.watchers and at.depth < end:\n                    self._changed[at] = None",
        "",
        "who waits hears of evictions",
    ),
    Mutant(
        POOL, "            if hi > at.depth:\n", "            if hi >= at.hi:\n", "a partly filled stretch can be hit"
    ),
    Mutant(POOL, "and last.holders == 1 and lo == at.depth:", "and lo == at.depth:", "a run has one set of holders"),
    Mutant(
        RUNS,
        "key=lambda r: r.turn)",
        "key=lambda r: -r.turn)",
        "a hit takes the oldest copy",
    ),
    Mutant(RUNS, "end = min(end, self.depth)", "end = self.depth", "a hit ends before the last token"),
    Mutant(
        BLOCKS,
        "            if depth < at.hi:\n",
        "            if depth <= at.hi:\n",
        "a prefix goes on in the next stretch",
    ),
    Mutant(BLOCKS, "node.requests > 1", "node.requests > 0", "a shared stretch has two requests"),
    Mutant(BLOCKS, "or prompt <= max_input:", "or prompt < max_input:", "a prompt of just the maximum is accepted"),
    Mutant(BLOCKS, "        self._changed.clear()\n", "", "a change is told once"),
    Mutant(
        CONTENT,
        "while path and path[-1].lo >= shared:",
        "while path and path[-1].lo > shared:",
        "requests that differ share no stretch",
    ),
    Mutant(CONTENT, "np.where(ids[a] == ids[b],", "np.where(ids[a] != ids[b],", "a shorter use of an id is a prefix"),
    Mutant(
        LRU,
        "                self._by_use.move_to_end(at)\n",
        "",
        "the least recently used makes room",
    ),
    Mutant(LRU, "for at in reversed(using):", "for at in using:", "a prompt's tail goes before its head"),
    Mutant(
        LRU, "going = min(excess, at.depth - at.pinned)", "going = min(excess, at.depth - at.lo)", "pinned blocks stay"
    ),
    Mutant(
        LRU,
        "self.pinned -= before - at.pinned",
        "self.pinned -= before - at.lo",
        "two pins on one stretch are counted once each",
        RESTORE,
    ),
    Mutant(STORE, "if at.shared)])", ")])", "discard keeps what two requests share"),
    Mutant(
        STORE,
        "return self.latency_ns - (-blocks * self.bytes_per_block * 10**9 // self.bytes_per_s)",
        "return self.latency_ns + blocks * self.bytes_per_block * 10**9 // self.bytes_per_s",
        "a transfer is rounded up",
    ),
    Mutant(
        STORE,
        "            self.stall_ns += arrived - now\n",
        "            self.stall_ns += arrived\n",
        "waits begin now",
    ),
    Mutant(STORE, "max(now, reach.waits_ns)", "now", "a prefetched transfer is waited for"),
    Mutant(
        STORE,
        "            self._given_up.append(self._coming.index)\n",
        "",
        "giving up a transfer is a change",
    ),
    Mutant(CACHE, "tracks = paged = False", "tracks = paged = True", "the null cache is not asked"),
    Mutant(
        PAGING,
        "self.crossing[(begin - self.goals[index]) % self.block] -= 1",
        "pass",
        "who has left needs no blocks",
        FREE,
    ),
    Mutant(
        PAGING,
        "self.goals[i] - before, tokens, FAR if cap is None else cap)",
        "self.goals[i] - before, tokens)",
        "blocks are planned for no more than the cap",
    ),
    Mutant(
        PAGING,
        "            tokens -= c",
        "            pass",
        "blocks are planned for granted tokens alone",
    ),
    Mutant(
        PAGING,
        "need = 0 if (step - begin + self.goals[index]) % self.block else 1",
        "need = 0 if (step - begin + self.goals[index] + 1) % self.block else 1",
        "a block is taken when the last one is full",
    ),
    Mutant(
        PAGING,
        "self._preempt(next(reversed(self.running)), step)",
        "self._preempt(next(iter(self.running)), step)",
        "the last running request is preempted",
    ),
    Mutant(
        PAGING,
        "cache.finish(index, computed, max(goal, computed - 1))",
        "cache.finish(index, computed)",
        "the newest token of a victim is not known",
    ),
]
