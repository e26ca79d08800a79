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


@pytest.fixture(scope="session", autouse=True)
def empty_compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled graphs that earlier runs left on this machine must not decide whether a test passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
