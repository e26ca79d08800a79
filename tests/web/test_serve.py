"""The server's process: it starts, says where it is, warns, and ends in order."""

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from paths import importing
from phrasechain.core.errors import DataError
from phrasechain.web.serve import is_local, read_token
from tiny_grounder import write_grounder
from web_client import started_server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_grounder(tmp_path_factory.mktemp("model") / "model"))


def test_it_starts_answers_and_ends_in_order(model: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with started_server("--model", model, "--token-file", str(tmp_path / "token")) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/api/health") as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{address}/api/model")
        process.send_signal(2)
        assert process.wait(timeout=60) == 0


def test_a_port_in_use_is_one_line(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "phrasechain", "serve", "--model", model]
        command += ["--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=importing(__file__), check=False
        )
    assert done.returncode == 2
    assert "cannot be used: Address already in use; choose another --host or --port" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_others_can_reach_is_warned_about(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phrasechain", "serve", "--model", model, "--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=importing(__file__)) as process:
        assert process.stderr is not None
        first, second = process.stderr.readline(), process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert (
        first
        == "warning: other computers can reach 0.0.0.0, and anybody there may use it; --token-file asks for a token\n"
    )
    assert "is ready" in second


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("x.org", False)]
)
def test_local_addresses(host: str, local: bool) -> None:
    assert is_local(host) == local


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "0123456789abcdeé"])
def test_a_token_is_one_long_word(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(DataError, match="a token is one word of 16 or more"):
        read_token(tmp_path / "token")
