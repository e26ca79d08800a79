"""A comparison of tiny runs, made once for all tests of it."""

from collections.abc import Iterator

import pytest

from tiny_comparison import Compared, write_compared


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    root = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(root / "cache"))
        found = write_compared(root)
        found.run()
        yield found
