"""Both paths of the loss: the compiled kernel and pure torch."""

import pytest

from phrasechain.chain import kernel


@pytest.fixture(params=["compiled", "torch"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernel, "load", lambda: None)
    elif kernel.load() is None:
        pytest.skip("the compiled kernel was not built here")
    return request.param
