"""The documentation is true: its examples run and print what it says, and its commands exist."""

import contextlib
import doctest
import io
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import phrasechain
from paths import ROOT
from phrasechain.cli import main
from phrasechain.core.boxes import iou_xyxy

PAGES = ("README.md", "docs/chain.md", "docs/text.md", "docs/model.md")
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```\n(?P<output>.*?)```)?", re.S)


def examples() -> list[object]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in EXAMPLE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match["code"], match["output"], id=f"{page}:{line}"))
    return found


@pytest.mark.parametrize(("code", "output"), examples())
def test_page_example(code: str, output: str | None) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert printed.getvalue() == (output or "")


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(phrasechain.__path__, "phrasechain.")
    if not module.name.rsplit(".", 1)[-1].startswith("_")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_module_is_in_the_file_tree() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {
        path.name for path in (ROOT / "src" / "phrasechain").rglob("*.[pch]*") if path.suffix in (".py", ".c", ".h")
    }
    missing = {name for name in names - {"__init__.py", "__main__.py"} if name not in tree}
    assert missing == set()


def test_the_example_script_shows_a_gain() -> None:
    command = [sys.executable, str(ROOT / "examples" / "soft_label_tagger.py"), "--seeds", "1", "--epochs", "10"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    surprise = {line.split()[0]: float(line.split()[1]) for line in result.stdout.splitlines()[1:]}
    assert surprise["soft"] < min(surprise["one"], surprise["majority"])


def test_the_first_command_finds_the_man(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = re.search(r"^# set up and run\n.* && \.venv/bin/(phrasechain ground .*)$", readme, re.M)
    assert line is not None
    (tmp_path / "photos").symlink_to(ROOT / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*shlex.split(line[1]), "--json", "--out", "photographer.grounded.png"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    man = json.loads(capsys.readouterr().out)["phrases"][0]
    assert (man["text"], man["category"]) == ("A man", "people")
    seen = torch.tensor([0.0, 65, 335, 512])  # measured by hand
    assert iou_xyxy(torch.tensor(man["box"]), seen) > 0.7
    assert Path("photographer.grounded.png").exists()


def test_ci_runs_the_readme_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = re.search(r"^# set up and test\n(.*)$", readme, re.M)
    assert line is not None
    assert "-c constraints.txt" in line[1]
    assert "pytest" in line[1]
    assert "set up and test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
