"""A part of the campaign with a fixed seed: some damaged inputs to each reader, threads, and a long run made short."""

import json
import sys
from pathlib import Path

import pytest

from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from campaign import Tally, parts, run_part
from campaign_cases import READERS

#: Cases of each reader: about a minute in all.
CASES = 300
COSTLY = (
    *("features, BAN", "features, npz", "ELMo's weights", "ELMo's options"),
    *("model settings", "model weights", "stores"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(READERS))
def test_damaged_inputs_end_in_a_result_or_one_line(tmp_path: Path, name: str) -> None:
    wanted = CASES // 6 if name in COSTLY else CASES
    tally = run_part(name, tmp_path, 2019, wanted / READERS[name][0], seconds=60)
    failures = [path.read_text() for path in sorted((tmp_path / "failures").rglob("*.txt"))]
    assert (tally.failures, failures) == (0, [])
    assert tally.cases == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("threads", 0.02), ("long run", 0.05)])
def test_threads_and_a_long_run(tmp_path: Path, name: str, share: float) -> None:
    tally = run_part(name, tmp_path, 2019, share, seconds=60)
    assert (tally.failures, list((tmp_path / "failures").rglob("*.txt"))) == (0, [])
    assert tally.cases


def test_what_was_done_is_resumed_and_failures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_part("mark-up", tmp_path, 1, 10 / 300_000, seconds=60)
    assert first.cases == 10
    assert run_part("mark-up", tmp_path, 1, 25 / 300_000, seconds=60).cases == 25
    assert Tally(**json.loads((tmp_path / "mark-up.json").read_text())).cases == 25

    whole = [True, True]  # the inputs that nothing is wrong with pass

    def broken(*_: object) -> None:
        if whole:
            whole.pop()
        else:
            raise RuntimeError("a mistake of our own")

    monkeypatch.setattr("campaign_cases.parse_caption", broken)
    assert run_part("mark-up", tmp_path, 1, 28 / 300_000, seconds=60).failures == 3
    kept = sorted((tmp_path / "failures" / "mark-up").iterdir())
    assert [path.name for path in kept] == [f"{n}.{kind}" for n in (26, 27, 28) for kind in ("bin", "txt")]
    assert "a mistake of our own" in kept[1].read_text()
    assert set(READERS) < set(parts())
