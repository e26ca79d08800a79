"""Ordered work in threads."""

import threading
from itertools import islice

from phrasechain.core.parallel import in_order


def test_results_come_in_order_and_not_far_ahead() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def square(n: int) -> int:
        with lock:
            begun.append(n)
        return n * n

    taken = in_order(square, range(1000), workers=2)
    assert list(islice(taken, 10)) == [n * n for n in range(10)]
    assert len(begun) <= 10 + 2 * 2 + 1
    taken.close()
    assert len(begun) <= 10 + 2 * 2 + 1
