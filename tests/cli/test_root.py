"""The program itself: help without torch, and whatever goes wrong is one line and a status."""

import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import phrasechain
from official_layout import write_image
from phrasechain import cli
from phrasechain.evaluation import check


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    write_image(tmp_path / "data", "10", "[/EN#1/people A man] .\n", [(["1"], [(1, 1, 10, 10)], {})], photo=(100, 80))
    return tmp_path / "data"


def status(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    monkeypatch.setattr(sys, "argv", ["phrasechain", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["ground", "--captions"],
        ["evaluate", "--data", "."],
        ["import-features", "--out", "store"],
        ["extract", "--out", "store"],
    ],
)
def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    too_long = "a" * 5000
    assert status(monkeypatch, *command, too_long) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", [["train-regions", "--data", "."], ["train-finder", "--sentences", "."]])
@pytest.mark.parametrize(("given", "name"), [(["--epochs", "0"], ""), (["--set", "train.epochs=0"], "--set: ")])
def test_a_wrong_value_is_told_by_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], given: list[str], name: str
) -> None:
    assert status(monkeypatch, *command, "--out", "run", *given) == 2
    assert capsys.readouterr().err == f"phrasechain: {name}train.epochs is 1 or more, not 0\n"


def test_a_name_that_would_steer_the_terminal_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, "check", "no\nsuch\x1b[2J") == 2
    assert capsys.readouterr().err == "phrasechain: no\\nsuch\\x1b[2J: no such file or folder\n"


def test_an_interrupt_is_one_line(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check_dataset", interrupted)
    assert status(monkeypatch, "check", data) == 130
    assert capsys.readouterr().err == "phrasechain: interrupted\n"


def test_a_terminal_that_knows_ascii_only_gets_escapes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "val.txt").write_text("10\nnäht\n", encoding="utf-8")
    stdout = TextIOWrapper(BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert status(monkeypatch, "check", data) == 1
    assert b"n\\xe4ht is listed" in stdout.buffer.getvalue()  # type: ignore[attr-defined]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phrasechain", *arguments], capture_output=True, text=True, check=False
    )


def test_version() -> None:
    assert run("--version").stdout == f"phrasechain {phrasechain.__version__}\n"


HELP_OF_ALL = """
import sys
from typer.testing import CliRunner
from phrasechain.cli.root import COMMANDS, app
for arguments in [["--help"], *([name, "--help"] for name in COMMANDS)]:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert not {"torch", "numpy"} & set(sys.modules), arguments
"""


def test_help_does_not_load_torch() -> None:
    result = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_an_error_is_one_line_and_status_2() -> None:
    result = run("bench", "chian")
    assert result.returncode == 2
    assert result.stdout == ""
    expected = "phrasechain: no benchmark named 'chian'; there are: chain, step, ground (did you mean 'chain'?)\n"
    assert result.stderr == expected
