"""Nobody can fill the server's memory or disk, wait for ever, or use it without leave."""

import asyncio
import os
import struct
import tempfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from phrasechain.grounding.grounder import Grounder
from phrasechain.web.app import create_app
from phrasechain.web.guard import Access
from phrasechain.web.service import GroundService
from phrasechain.web.settings import ServerLimits
from tiny_grounder import CAPTION
from web_client import local_client

TOKEN = "correct-horse-battery-staple"


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says to have many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def test_an_upload_has_a_limit(grounder: Grounder, picture: Path) -> None:
    size = len(picture.read_bytes())
    for limit, status in ((size, 201), (size - 1, 413)):
        with local_client(grounder, upload_bytes=limit) as client:
            answer = client.post("/api/photos", files={"image": picture.read_bytes()})
            assert answer.status_code == status
    assert f"{size - 1:,} bytes at most" in answer.json()["error"]
    assert ServerLimits().upload_bytes == 20_000_000


def test_a_large_body_is_not_received_to_its_end(grounder: Grounder) -> None:
    sent: list[int] = []

    def endless() -> Any:
        yield b"--x\r\n"
        for number in range(10_000):
            sent.append(number)
            yield b"\0" * 65_536

    with local_client(grounder, upload_bytes=1_000) as client:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        assert client.post("/api/photos", content=endless(), headers=headers).status_code == 413
        lying = {**headers, "content-length": "-5"}
        assert client.post("/api/photos", content=b"x", headers=lying).status_code == 413


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (png_bomb(30_000, 30_000), 422, "more than 178,956,970 pixels"),
        (png_bomb(9_000, 9_000), 413, "64,000,000 pixels at most"),
        (png_bomb(50, 50), 422, "the given picture: "),
        (b"%PDF-1.4", 422, "not an image of a known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "not an image of a known format"),
        (b"", 422, "not an image of a known format"),
    ],
    ids=["bomb", "large", "cut", "pdf", "svg", "empty"],
)
def test_bombs_and_other_files_are_refused(client: TestClient, data: bytes, status: int, message: str) -> None:
    answer = client.post("/api/photos", files={"image": ("x.png", data)})
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


def test_nothing_is_written(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form's file of more than a megabyte would go to disk by default."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", None)
    large = BytesIO()
    Image.frombytes("RGB", (900, 900), os.urandom(900 * 900 * 3)).save(large, "PNG")
    assert len(large.getvalue()) > 2_000_000
    assert client.post("/api/photos", files={"image": large.getvalue()}).status_code == 201
    assert list(tmp_path.iterdir()) == []


async def call(app: Any, path: str, receive: Any) -> list[dict[str, Any]]:
    """Call the application as a server does, with bodies that come when the test says."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"testserver")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "http_version": "1.1", "scheme": "http", "server": ("testserver", 80)}
    await app({**scope, "client": ("1.2.3.4", 5), "root_path": ""}, receive, send)
    return sent


def test_a_request_has_a_time_limit_and_others_do_not_wait_for_it(grounder: Grounder) -> None:
    """One client sends half a body and then nothing."""

    async def run() -> tuple[int, int]:
        service = GroundService(grounder, ServerLimits(seconds=0.3), workers=1)
        app, stopped = create_app(service), asyncio.Event()

        async def half() -> dict[str, Any]:
            if not stopped.is_set():
                stopped.set()
                return {"type": "http.request", "body": b'{"cap', "more_body": True}
            await asyncio.Event().wait()
            raise AssertionError

        async def whole() -> dict[str, Any]:
            return {"type": "http.request", "body": b'{"caption": "the dog"}', "more_body": False}

        slow = asyncio.create_task(call(app, "/api/phrases", half))
        await stopped.wait()
        quick = await call(app, "/api/phrases", whole)
        assert not slow.done()
        ended = await slow
        await asyncio.to_thread(service.close)
        return quick[0]["status"], ended[0]["status"]

    assert asyncio.run(run()) == (200, 504)


def test_a_full_queue_says_when_to_try_again(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is refused costs nothing; requests that wait are answered."""
    begun, free = Event(), Event()

    def wait(self: GroundService, requests: Sequence[Any]) -> list[Any]:
        begun.set()
        free.wait()
        return [[] for _ in requests]

    monkeypatch.setattr(GroundService, "_find", wait)

    async def body() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"caption": "the dog"}', "more_body": False}

    async def run() -> list[int]:
        service = GroundService(grounder, ServerLimits(waiting=3), workers=1)
        app = create_app(service)
        tasks = [asyncio.create_task(call(app, "/api/phrases", body))]
        await asyncio.to_thread(begun.wait)
        tasks += [asyncio.create_task(call(app, "/api/phrases", body)) for _ in range(10)]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (b"retry-after", b"1") in refused.pop().result()[0]["headers"]
        free.set()
        answers = await asyncio.gather(*tasks)
        await asyncio.to_thread(service.close)
        return [answer[0]["status"] for answer in answers]

    statuses = asyncio.run(run())
    assert sorted(statuses) == [200] * 4 + [503] * 7


def test_all_bodies_together_are_bounded(grounder: Grounder, picture: Path) -> None:
    with local_client(grounder, buffered_bytes=100) as client:
        answer = client.post("/api/photos", files={"image": picture.read_bytes()})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        for _ in range(20):  # what was received is given back
            assert client.post("/api/phrases", json={"caption": "the dog"}).status_code == 200


def test_a_bug_is_one_sentence_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GroundService, "_find", lambda self, requests: 1 / 0)
    answer = client.post("/api/phrases", json={"caption": "the dog"})
    assert answer.status_code == 500
    assert answer.json() == {"error": "something went wrong in the server; its log says what"}
    assert "ZeroDivisionError" in caplog.text
    assert client.get("/api/health").status_code == 200


def test_a_token_guards_all_but_the_page_and_health(grounder: Grounder) -> None:
    with local_client(grounder, Access(token=TOKEN)) as client:
        for path in ("/", "/docs", "/page/style.css", "/photos/coffee.jpg", "/api/health"):
            assert client.get(path).status_code == 200, path
        for headers in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}, {"authorization": "é"}):
            encoded = {name: value.encode() for name, value in headers.items()}
            for method, path in (("GET", "/api/model"), ("GET", "/api/metrics"), ("GET", "/api/openapi.json")):
                assert client.request(method, path, headers=encoded).status_code == 401
            answer = client.post("/api/ground", json={"caption": CAPTION}, headers=encoded)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/api/model", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_other_sites_are_kept_out_unless_they_are_named(grounder: Grounder) -> None:
    site = {"origin": "https://example.org", "sec-fetch-site": "cross-site"}
    with local_client(grounder) as client:
        answer = client.get("/api/model", headers=site)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        assert client.get("/api/model", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    with local_client(grounder, Access(TOKEN, origins=["https://example.org"])) as client:
        before = client.options("/api/ground", headers={**site, "access-control-request-method": "POST"})
        assert before.status_code == 204
        assert before.headers["access-control-allow-headers"] == "authorization, content-type"
        answer = client.get("/api/model", headers={**site, "authorization": f"Bearer {TOKEN}"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        other = {**site, "origin": "https://example.com"}
        assert client.get("/api/model", headers=other).status_code == 403


def test_a_server_of_this_computer_goes_by_its_names(grounder: Grounder) -> None:
    """A page whose name was made to point here (DNS rebinding) cannot use it."""
    with local_client(grounder, Access(hosts=("localhost", "127.0.0.1", "::1"))) as client:
        for host, status in (
            ("localhost:8000", 200),
            ("127.0.0.1", 200),
            ("[::1]:80", 200),
            ("evil.org", 400),
            ("[", 400),
        ):
            assert client.get("/api/health", headers={"host": host}).status_code == status, host


def test_every_answer_says_what_a_browser_may_do(client: TestClient) -> None:
    for path in ("/", "/api/health", "/nothing", "/photos/coffee.jpg"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-store" if path.startswith("/api/") else "no-cache")
