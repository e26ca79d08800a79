"""The command line itself: help without torch, versions, errors in one line."""

import subprocess
import sys

import pytest

import phrasechain


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phrasechain", *arguments], capture_output=True, text=True, check=False
    )


def test_version() -> None:
    assert run("--version").stdout == f"phrasechain {phrasechain.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["evaluate", "--help"]])
def test_help_does_not_load_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from phrasechain.cli import app\n"
        f"result = CliRunner().invoke(app, {arguments!r}); assert result.exit_code == 0, result.output\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_an_error_is_one_line_and_status_2() -> None:
    result = run("bench", "chian")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "phrasechain: no benchmark named 'chian'; there are: chain (did you mean 'chain'?)\n"
