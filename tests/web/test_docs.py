"""The clients of docs/api.md work: the one in Python, and those of curl."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT
from tiny_grounder import write_grounder
from web_client import started_server

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = write_grounder(tmp_path_factory.mktemp("model") / "model")
    with started_server("--model", str(model)) as (address, _):
        yield address


def test_the_client_in_python(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {}
    exec(code[1].replace(HERE, address), names)
    call = re.search(r"`(ground\(send.*?\))` is then", PAGE)
    assert call is not None
    monkeypatch.chdir(ROOT)
    assert all(len(phrase["box"]) == 4 for phrase in eval(call[1], names))


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_clients_of_curl(address: str) -> None:
    lines = re.findall(r"^curl .*$", PAGE, re.M)
    assert len(lines) == 2
    for line, key in zip(lines, ('"photo":', '"phrases":'), strict=True):
        command = line.replace(HERE, address)
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        assert key in done.stdout


def test_the_pages_routes_are_all() -> None:
    from phrasechain.web import app

    source = Path(app.__file__).read_text(encoding="utf-8")
    routes = set(re.findall(r'"(/api/[a-z.]+)"', source)) | {"/api/health"}
    assert routes == set(re.findall(r"^\| `(?:GET|POST) (/api/[a-z.]+)` ", PAGE, re.M))
