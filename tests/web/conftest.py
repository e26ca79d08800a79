"""A client of the API, in the same process, over a grounder of tiny networks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'web' is not installed")

from starlette.testclient import TestClient

from phrasechain.grounding.grounder import Grounder
from tiny_grounder import tiny_grounder
from tiny_regions import write_photo
from web_client import local_client


@pytest.fixture(scope="session")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> Grounder:
    return tiny_grounder(tmp_path_factory.mktemp("grounder") / "model", photos=0)


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photos") / "photo.png", seed=7, size=(90, 60))


@pytest.fixture(scope="module")
def client(grounder: Grounder) -> Iterator[TestClient]:
    with local_client(grounder) as client:
        yield client


@pytest.fixture
def photo(client: TestClient, picture: Path) -> str:
    """The id of a photo that was sent."""
    answer = client.post("/api/photos", files={"image": picture.read_bytes()})
    assert answer.status_code == 201
    return str(answer.json()["photo"])
