"""Both paths of the loss: the compiled kernel and pure torch."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from phrasechain.chain import kernel


@pytest.fixture(params=["compiled", "torch"])
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "compiled" and kernel.load() is None:
        pytest.skip("the compiled kernel was not built here")
    with kernel.disabled() if request.param == "torch" else nullcontext():
        yield request.param
