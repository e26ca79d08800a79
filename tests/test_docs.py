"""The documentation is true: its examples run and print what it says, and its commands, files and links exist."""

import contextlib
import doctest
import importlib.util
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tempfile
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer.main

import phrasechain
from paths import ROOT
from phrasechain.cli import main
from phrasechain.cli.root import app
from phrasechain.core.boxes import iou_xyxy
from phrasechain.model.config import make_config

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CARDS = sorted((ROOT / "src").rglob("*.md"))
NOW = [*DOCS, *CARDS, ROOT / "RESULTS.md", ROOT / "CONTRIBUTING.md"]
NOW.remove(ROOT / "docs" / "notebook.md")  # its commands are those of the commits that it names
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```\n(?P<output>.*?)```)?", re.S)
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in DOCS if "```python" in page.read_text("utf-8")], ids=name_of)
def test_the_examples_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the project's photos, in the order of the page: an example may use what an earlier one made."""
    (tmp_path / "photos").symlink_to(ROOT / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "example"}
    for example in EXAMPLE.finditer(text):
        above = text[: example.start("code")].count("\n")  # so that a traceback has the lines of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * above + example["code"], str(page), "exec"), names)
        assert printed.getvalue() == (example["output"] or ""), f"{name_of(page)}, the example at line {above + 1}"


def shell_lines(page: Path) -> list[list[str]]:
    """The words of every command of ours on a page, in a block or in the text, without its comment."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    prose, *fenced = re.split(r"^```", text, flags=re.M)  # opening, closing, opening, closing, …
    lines = [line for block in fenced[::2] for line in block.splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", "".join([prose, *fenced[1::2]]))]
    found = [re.search(r"(?:^|/|-m |\| )phrasechain (?P<words>[a-z].*)", line.split(" #")[0]) for line in lines]
    return [re.split(r"[\s\[\]]+", match["words"].strip()) for match in found if match]


@pytest.mark.parametrize("page", NOW, ids=name_of)
def test_its_commands_and_options_exist(page: Path) -> None:
    for command, *words in shell_lines(page):
        assert command in COMMANDS, f"phrasechain {command}: there is no such command"
        known = {option for parameter in COMMANDS[command].params for option in (*parameter.opts, "--help")}
        known |= {option for parameter in COMMANDS[command].params for option in parameter.secondary_opts}
        wrong = {word.split("=")[0] for word in words if word.startswith("--")} - known
        assert not wrong, f"phrasechain {command} has no {', '.join(sorted(wrong))}"
        if command in ("train", "compare"):  # whose --set section.key=value must be keys, with values of their types
            make_config("small", None, None, [value for word, value in pairwise(words) if word == "--set"])


def test_every_command_is_on_a_page() -> None:
    shown = {command for page in DOCS if page in NOW for command, *_ in shell_lines(page)}
    assert set(COMMANDS) - shown == set()


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(phrasechain.__path__, "phrasechain.")
    if not module.name.rsplit(".", 1)[-1].startswith("_")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def anchors(page: Path) -> set[str]:
    """What a link may name within a page: its headings as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*NOW, ROOT / "docs" / "notebook.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        goal = (page.parent / path) if path else page
        assert goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


@pytest.mark.parametrize("page", NOW, ids=name_of)
def test_the_files_it_names_are_there(page: Path) -> None:
    for name in re.findall(r"`((?:[\w.]+/)+\w+\.(?:py|c|h|md))`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "src" / "phrasechain" / name).exists(), name


@pytest.mark.parametrize(("page", "limit"), [("README.md", 150), ("RESULTS.md", 200)])
def test_the_front_pages_stay_short(page: str, limit: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) < limit


def test_every_module_is_in_the_file_tree() -> None:
    """And nothing else: the tree of docs/architecture.md is that of the source."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = re.search(r"^src/phrasechain/\n(.*?)^```", page, re.S | re.M)
    assert tree is not None
    shown, folders = set(), [""]
    for indent, name in re.findall(r"^( +)(\S+)", tree[1], re.M):
        del folders[len(indent) // 2 :]
        if name.endswith("/"):
            folders.append(folders[-1] + name)
        else:
            shown.add(folders[-1] + name)
    source = ROOT / "src" / "phrasechain"
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in (".py", ".c", ".h")}
    assert shown == {name for name in there if not name.endswith(("__init__.py", "__main__.py"))}


SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_imports_what_there_is(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(f"script_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
    monkeypatch.syspath_prepend(script.parent)  # where it finds others, as it does when it is run
    spec.loader.exec_module(module)
    assert callable(module.main)


def test_every_script_has_a_figure() -> None:
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert [script.name for script in SCRIPTS if script.name not in results] == []


@pytest.mark.slow
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
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
