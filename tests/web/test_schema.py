"""Requests that the OpenAPI document allows, and others: schemathesis makes them, with real images among them."""

import base64
import warnings
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from phrasechain.grounding.grounder import Grounder
from web_client import local_client

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")


def real_image(seed: int) -> bytes:
    """A small picture of one of the formats, at times cut."""
    rng, file = np.random.default_rng(seed), BytesIO()
    height, width = rng.integers(1, 40, 2)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(file, FORMATS[seed % len(FORMATS)])
    data = file.getvalue()
    return data[: len(data) // 2] if seed % 7 == 0 else data


@pytest.fixture(scope="module")
def quick_client(grounder: Grounder) -> Iterator[TestClient]:
    with local_client(grounder) as client:
        yield client


@pytest.mark.parametrize("path", ["/api/photos", "/api/ground", "/api/batch", "/api/phrases"])
def test_no_request_makes_it_fail(quick_client: TestClient, grounder: Grounder, picture: Path, path: str) -> None:
    """Whatever is sent, the answer is one of those that are documented, and never a 500."""
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", quick_client.app)
    operation = schema[path]["POST"]
    photo = quick_client.post("/api/photos", files={"image": picture.read_bytes()}).json()["photo"]
    documented = set(operation.definition.raw["responses"])
    seen: set[int] = set()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(), st.integers(0, 10_000), st.sampled_from(["photo", "image", "as it is"]))
    def check(case: Any, seed: int, which: str) -> None:
        if isinstance(case.body, dict):
            _with_photo(case.body, case.media_type, which, photo, real_image(seed))
        answer = case.call(session=quick_client)
        seen.add(answer.status_code)
        assert answer.status_code != 500, answer.text
        assert str(answer.status_code) in documented, (answer.status_code, answer.text)
        if answer.status_code >= 400:
            assert list(answer.json()) == ["error"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check()
    assert seen & {200, 201}, "some requests were good ones"


def _with_photo(body: dict[str, Any], kind: str | None, which: str, photo: str, image: bytes) -> None:
    if which == "photo" and "photo" in body:
        body["photo"] = photo
        body.pop("image", None)
    elif which == "image" and "image" in body:
        body["image"] = image if kind == "multipart/form-data" else base64.b64encode(image).decode()
        body.pop("photo", None)
    if which != "as it is" and kind == "multipart/form-data":
        for name, value in (("captions", '["a dog", {"caption": "a red ball"}]'), ("phrases", "null")):
            if name in body:
                body[name] = value
