"""The garbage collector is as it was after runs, however they overlap and end."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

from sim.collecting import NEVER, young_only


def test_thresholds_are_put_back_after_the_last_of_several_runs() -> None:
    before = gc.get_threshold()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with young_only():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with contextlib.suppress(ZeroDivisionError), young_only():
        thread.start()
        entered.wait()
        raise ZeroDivisionError
    assert gc.get_threshold() == (*before[:2], NEVER)
    leave.set()
    thread.join()
    assert gc.get_threshold() == before


def test_cycles_made_during_a_run_are_still_collected() -> None:
    class Node:
        own: Node

    seen = []
    with young_only():
        for _ in range(20_000):
            node = Node()
            node.own = node
            seen.append(weakref.ref(node))
        del node
        assert sum(ref() is not None for ref in seen) < 10_000
