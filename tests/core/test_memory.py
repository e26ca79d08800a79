"""Pausing the garbage collector leaves it as it was, and hides nothing from it."""

import gc
import weakref
from contextlib import suppress

from phrasechain.core.memory import collector_paused


class Node:
    """May refer to itself."""

    me: object


def test_the_collector_is_paused_and_then_as_before() -> None:
    was_enabled = gc.isenabled()
    try:
        for state in (gc.enable, gc.disable):
            state()
            before = gc.isenabled()
            with collector_paused():
                assert not gc.isenabled()
            assert gc.isenabled() == before
            with suppress(KeyError), collector_paused():
                raise KeyError
            assert gc.isenabled() == before
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_garbage_of_the_pause_is_found_later() -> None:
    with collector_paused():
        node = Node()
        node.me = node
        seen = weakref.ref(node)
        del node
    assert gc.get_freeze_count() == 0
    assert seen() is not None
    gc.collect()
    assert seen() is None
