"""A folder of groundings is whole after any kill, and is resumed where it was."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phrasechain.grounding.captions import LINES, CaptionedPhoto
from phrasechain.grounding.folder import GroundingFolder, _cut_half_line

WORK = """
import sys, time
from pathlib import Path
from phrasechain.grounding.captions import CaptionedPhoto
from phrasechain.grounding.folder import GroundingFolder
with GroundingFolder(Path(sys.argv[1])) as folder:
    for number in range(10_000):
        pair = CaptionedPhoto("a.jpg", Path("a.jpg"), f"a dog {number}", ("dog", (0, 1)))
        if pair not in folder:
            record = {"image": {"path": "a.jpg"}, "caption": pair.caption, "model": "m", "decode": "d"}
            folder.add(pair, record, b"picture" * 1000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_leaves_whole_files_and_no_lock(tmp_path: Path) -> None:
    lines = tmp_path / LINES
    with subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path)]) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (lines.exists() and lines.stat().st_size > 2000):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    with GroundingFolder(tmp_path) as folder:
        done = [json.loads(line) for line in lines.read_text().splitlines()]
        pairs = [CaptionedPhoto("a.jpg", Path("a.jpg"), record["caption"], ("dog", (0, 1))) for record in done]
        assert len(done) > 5
        assert all(pair in folder for pair in pairs)
        assert (
            CaptionedPhoto("a.jpg", Path("a.jpg"), pairs[0].caption) not in folder
        )  # no phrases were given: another question
    assert [record["caption"] for record in done] == [f"a dog {number}" for number in range(len(done))]
    for record in done:
        assert (tmp_path / record["picture"]).read_bytes() == b"picture" * 1000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"a\n", b"a\n"),
        (b"a\nb", b"a\n"),
        (b"half", b""),
        (b"a\n" + b"b" * 200_000, b"a\n"),
        (b"b" * 200_000, b""),
        (b"x" * 65_535 + b"\n" + b"y" * 65_536, b"x" * 65_535 + b"\n"),
    ],
)
def test_half_a_line_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "lines").write_bytes(before)
    _cut_half_line(tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == after
