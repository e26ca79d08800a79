"""Fixtures and settings that several test files use."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Slow machines and first imports are no failures.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with the real data, beside the project; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "flickr8k-entities").is_dir():
        pytest.skip("the real data (../shared/flickr8k-entities) is not here")
    return folder
