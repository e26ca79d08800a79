"""Fixtures that several test files use."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with the real data, beside the project; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "flickr8k-entities").is_dir():
        pytest.skip("the real data (../shared/flickr8k-entities) is not here")
    return folder
