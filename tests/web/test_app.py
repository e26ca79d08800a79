"""The API answers as the library does, and says in a sentence what it cannot do."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import Image
from starlette.testclient import TestClient

from phrasechain.core.images import ORIENTATION
from phrasechain.grounding.exporters import EXPORTERS
from phrasechain.grounding.grounder import Grounder
from phrasechain.model.decode import DECODERS
from phrasechain.web.schemas import Decode, Format
from tiny_grounder import CAPTION, PHRASES

SPANS = [[0, 5], [11, 21], [27, 34]]


def ground(client: TestClient, **body: Any) -> Any:
    answer = client.post("/api/ground", json={"caption": CAPTION, "phrases": list(PHRASES), **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answer_is_that_of_the_library(client: TestClient, grounder: Grounder, picture: Path, photo: str) -> None:
    for decode in (None, *DECODERS):
        wanted = grounder.ground(picture, CAPTION, PHRASES, decode, top_k=2).to_dict()
        wanted["image"]["path"] = None
        found = ground(client, photo=photo, decode=decode, top_k=2)
        assert (found["version"], found["decode"]) == (1, decode or grounder.decode)
        for mine, theirs in zip(found["phrases"], wanted["phrases"], strict=True):
            assert mine["box"] == pytest.approx(theirs["box"], abs=1e-2)
            assert mine["probability"] == pytest.approx(theirs["probability"], abs=1e-3)
            mine |= {key: theirs[key] for key in ("box", "probability", "alternatives")}
        assert found == wanted


def test_a_photo_by_id_as_a_file_and_in_base64(client: TestClient, picture: Path, photo: str) -> None:
    by_id = ground(client, photo=photo, phrases=SPANS)
    assert ground(client, image=base64.b64encode(picture.read_bytes()).decode()) == by_id
    form = {"caption": CAPTION, "phrases": json.dumps(SPANS), "top_k": "5"}
    answer = client.post("/api/ground", data=form, files={"image": ("x.png", picture.read_bytes(), "image/png")})
    assert answer.json() == by_id
    again = client.post("/api/photos", json={"image": base64.b64encode(picture.read_bytes()).decode()})
    assert again.json()["photo"] != photo, "ids are not made from the photo"
    assert (again.json()["width"], again.json()["height"]) == (90, 60)


def test_exif_is_honoured(client: TestClient, picture: Path) -> None:
    exif, turned = Image.Exif(), BytesIO()
    exif[ORIENTATION] = 6
    with Image.open(picture) as image:
        image.save(turned, "PNG", exif=exif)
    answer = client.post("/api/photos", files={"image": turned.getvalue()}).json()
    assert (answer["width"], answer["height"]) == (60, 90)


def test_marginals_and_the_best(client: TestClient, grounder: Grounder, picture: Path, photo: str) -> None:
    found = ground(client, photo=photo, marginals=True, k_best=3)
    wanted = grounder.explore(picture, CAPTION, PHRASES, k_best=3).to_dict()
    for mine, theirs in zip(found["phrases"], wanted["phrases"], strict=True):
        assert len(mine["marginals"]) == len(theirs["marginals"])
    assert [len(each["boxes"]) for each in found["k_best"]] == [3, 3, 3]
    assert found["k_best"][0]["probability"] == pytest.approx(wanted["k_best"][0]["probability"], rel=1e-2)
    bare = ground(client, photo=photo, k_best=3)
    assert "marginals" not in bare["phrases"][0]
    assert "k_best" not in ground(client, photo=photo)


def test_what_is_less_probable_is_left_out(client: TestClient, photo: str) -> None:
    found = ground(client, photo=photo, marginals=True, k_best=2)
    least = sorted(phrase["probability"] for phrase in found["phrases"])[1] - 1e-6
    fewer = ground(client, photo=photo, marginals=True, k_best=2, min_probability=least)
    kept = [phrase["text"] for phrase in found["phrases"] if phrase["probability"] >= least]
    assert [phrase["text"] for phrase in fewer["phrases"]] == kept
    assert all(other["probability"] >= least for phrase in fewer["phrases"] for other in phrase["alternatives"])
    assert all(phrase["marginals"] for phrase in fewer["phrases"])
    assert {len(each["boxes"]) for each in fewer["k_best"]} == {len(kept)}


def test_other_formats(client: TestClient, picture: Path, photo: str) -> None:
    assert set(get_args(Format)) == {"json", "png", *EXPORTERS}
    assert len(ground(client, photo=photo, format="coco")["annotations"]) == 3
    assert [row["text"] for row in ground(client, photo=photo, format="rows")] == list(PHRASES)
    form = {"caption": CAPTION, "format": "png"}
    answer = client.post("/api/ground", data=form, files={"image": picture.read_bytes()})
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(BytesIO(answer.content)).width >= 90
    refused = client.post("/api/ground", json={"caption": CAPTION, "photo": photo, "format": "png"})
    assert "an id keeps no pixels" in refused.json()["error"]


def test_phrases_without_a_photo(client: TestClient, grounder: Grounder) -> None:
    found = client.post("/api/phrases", json={"caption": CAPTION}).json()
    assert [each["text"] for each in found["phrases"]] == [each.text for each in grounder.parts.finder.find(CAPTION)]
    given = client.post("/api/phrases", json={"caption": CAPTION, "phrases": [[2, 5], "dog"]}).json()
    assert [(each["start"], each["end"]) for each in given["phrases"]] == [(2, 5), (31, 34)]


def test_a_batch_is_as_one_by_one(client: TestClient, photo: str) -> None:
    captions = [
        CAPTION,
        {"caption": "the dog", "phrases": ["the dog"]},
        {"caption": "a man", "phrases": ["a cat"]},
        " ",
    ]
    found = client.post("/api/batch", json={"photo": photo, "captions": captions}).json()
    assert found["version"] == 1
    assert [grounding["caption"] for grounding in found["groundings"]] == [CAPTION, "the dog", "a man", " "]
    assert "not in the caption" in found["groundings"][2]["error"]
    assert "the caption is empty" in found["groundings"][3]["error"]
    alone = client.post("/api/ground", json={"photo": photo, "caption": "the dog", "phrases": ["the dog"]}).json()
    assert found["groundings"][1]["phrases"][0]["box"] == pytest.approx(alone["phrases"][0]["box"], abs=1e-2)


def test_the_state(client: TestClient, grounder: Grounder) -> None:
    assert client.get("/api/health").json()["status"] == "ok"
    model = client.get("/api/model").json()
    assert (model["model"], model["decode"], model["decoders"]) == (grounder.name, grounder.decode, list(DECODERS))
    assert set(get_args(get_args(get_args(Decode)[0])[0])) == set(DECODERS)


def test_the_api_documents_itself(client: TestClient) -> None:
    document = client.get("/api/openapi.json").json()
    for path in ("/api/photos", "/api/ground", "/api/batch"):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        assert set(content) == {"application/json", "multipart/form-data"}
    example = document["paths"]["/api/ground"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "example"
    ]
    assert set(example) == {"photo", "caption"}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("ground", {"photo": "x", "caption": CAPTION}, 404, "no photo has this id (any more); send it again"),
        ("ground", {"caption": CAPTION}, 422, "give either photo, an id of /api/photos, or image"),
        ("ground", {"photo": "x", "image": "AAAA", "caption": CAPTION}, 422, "give either photo"),
        ("ground", {"image": "AAAA", "caption": CAPTION}, 422, "not an image of a known format"),
        ("ground", {"image": "é", "caption": CAPTION}, 422, "image: not base64"),
        ("ground", {"image": "photos/coffee.jpg", "caption": CAPTION}, 422, "image: not base64"),
        ("ground", {"photo": "x"}, 422, "caption: Field required"),
        ("ground", {"photo": "x", "caption": "a" * 2001}, 422, "at most 2000 characters"),
        ("ground", {"photo": "x", "caption": CAPTION, "phrases": ["a"] * 101}, 422, "at most 100 items"),
        ("ground", {"photo": "x", "caption": CAPTION, "decode": "best"}, 422, "'viterbi'"),
        ("ground", {"photo": "x", "caption": CAPTION, "top_k": 51}, 422, "less than or equal to 50"),
        ("ground", {"photo": "x", "caption": CAPTION, "k_best": 21}, 422, "less than or equal to 20"),
        ("ground", {"photo": "x", "caption": CAPTION, "path": "/etc/passwd"}, 422, "path: Extra inputs"),
        ("ground", {"photo": "x", "caption": CAPTION, "url": "http://localhost"}, 422, "url: Extra inputs"),
        ("ground", [], 422, "valid dictionary"),
        ("phrases", {"caption": "word " * 399 + "!!"}, 200, None),
        ("batch", {"photo": "x", "captions": []}, 422, "captions: "),
        ("batch", {"photo": "x", "captions": ["a"] * 65}, 422, "at most 64 items"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    client: TestClient, path: str, body: Any, status: int, message: str | None
) -> None:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    if message is not None:
        assert message in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


def test_what_only_the_grounder_sees(client: TestClient, photo: str) -> None:
    for phrases, message in (
        (["a cat"], "not in the caption"),
        ([[0, 5], [2, 5]], "overlap"),
        ([[0, 3]], "whole words"),
        ([[5, 999]], "outside the caption"),
    ):
        for more in ({}, {"marginals": True}):
            body = {"photo": photo, "caption": CAPTION, "phrases": phrases, **more}
            answer = client.post("/api/ground", json=body)
            assert (answer.status_code, message in answer.json()["error"]) == (422, True)


def test_bodies_that_are_none(client: TestClient) -> None:
    for content, kind, status in (
        (b"{", "application/json", 400),
        (b'{"caption": NaN}', "application/json", 400),
        (b'{"caption": "\\ud800"}', "application/json", 400),
        (b"\xff", "application/json; charset=utf-8", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"caption=x", "application/x-www-form-urlencoded", 415),
        (b"x", "", 415),
        (b"nothing", "multipart/form-data", 400),
        (b"nothing", "multipart/form-data; boundary=x", 400),
        (
            b'--x\r\nContent-Disposition: form-data; name="phrases"\r\n\r\n[\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            400,
        ),
    ):
        answer = client.post("/api/ground", content=content, headers={"content-type": kind})
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), (content[:40], answer.text)


def test_what_is_not_there(client: TestClient) -> None:
    for method, path, status in (
        ("GET", "/api/nothing", 404),
        ("GET", "/nothing", 404),
        ("GET", "/api/ground", 405),
        ("GET", "/photos/", 404),
        ("GET", "/page/", 404),
        ("GET", "/photos/..%2f..%2fpyproject.toml", 404),
        ("GET", "/photos/%2e%2e/%2e%2e/pyproject.toml", 404),
        ("DELETE", "/photos/coffee.jpg", 405),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), path
    assert client.get("/photos/coffee.jpg").headers["content-type"] == "image/jpeg"
