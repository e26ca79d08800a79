"""The command: what it prints and writes, in parts and whole."""

import sys
from pathlib import Path

import pytest

from elmo_models import make_arrays, make_options, write_files
from phrasechain import cli
from phrasechain.core.settings import with_texts
from phrasechain.training.compare.runner import compare
from tiny_comparison import BASE, QUICK, Compared
from tiny_grounding import SMALL

SETTINGS = [part for text in (*SMALL, "train.epochs=2") for part in ("--set", text)]


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compared: Compared, *arguments: str
) -> tuple[int, str, str]:
    places = ("--data", compared.data, "--features", compared.store, "--out", compared.out, "--split", "train")
    words = ["phrasechain", "compare", *map(str, places), "--preset", "small", *SETTINGS, *arguments]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    status = end.value.code or 0
    assert isinstance(status, int)
    return status, *capsys.readouterr()


def test_tables_on_stdout_and_all_files_in_the_folder(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(monkeypatch, capsys, compared, "--row", "HL, SL,SL-CCRF", "--seeds", "1")
    assert status == 0
    assert out.startswith(f"# Phrase grounding compared on train of {compared.data}\n")
    assert "| SL-CCRF | " in out
    assert err.splitlines() == ["3 runs, 3 of them ready", str(compared.out / "compare.html")]
    for name in ("compare.md", "compare.json", "compare.html", "compare.png", "figure-2.png"):
        assert (compared.out / name).stat().st_size > 1000


def test_a_shard_says_what_it_does_and_prints_no_tables(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--row", "HL", "--row", "SL", "--seeds", "2", "--shard", "2/3")
    assert command(monkeypatch, capsys, compared, *arguments) == (0, "", "1 runs, 1 of them ready\n")
    status, out, err = command(monkeypatch, capsys, compared, "--shard", "4/3")
    assert (status, out) == (2, "")
    assert "a shard is i/n with i from 1 to n" in err


@pytest.mark.parametrize("row", ["HL (GloVe)", "SL-CCRF learned words"])
def test_a_row_that_would_repeat_another_is_refused(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], row: str
) -> None:
    status, out, err = command(monkeypatch, capsys, compared, "--row", row)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"row {row!r}: needs " in err


def test_with_elmo_there_are_two_hl(compared: Compared, tmp_path: Path) -> None:
    """One reads ELMo, the other the word vectors; all else is the same."""
    pytest.importorskip("h5py")
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} {' '.join(['0.5'] * 16)}\n" for word in ("a", "red", "blue", "tile")))
    options, weights = write_files(tmp_path, make_options(), make_arrays(make_options(), scale=0.5))
    settings = ["text.encoder=elmo", f"text.options={options}", f"text.weights={weights}", f"text.vectors={vectors}"]
    base = with_texts(BASE, [*settings, "train.epochs=1"])
    found = compare(
        compared.data,
        compared.store,
        tmp_path / "out",
        base,
        rows=["HL (GloVe)", "HL"],
        seeds=1,
        split="train",
        protocol=QUICK,
    )
    assert found is not None
    assert found.absent == {}
    assert found.words == "ELMo (last)"
    assert [line.label for line in found.tables["Table 1: models"]] == ["HL (GloVe)", "HL"]
    assert [(test.first, test.second) for test in found.tests] == [("HL", "HL (GloVe)")]
    texts = [(tmp_path / "out" / "runs" / f"{name}_seed-0" / "config.json").read_text() for name in ("HL-GloVe", "HL")]
    assert ['"encoder": "words"' in text for text in texts] == [True, False]
