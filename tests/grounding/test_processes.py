"""A grounder in other processes: forked, spawned, from a fork server, and a worker of a DataLoader."""

import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT, importing

SCRIPT = """
import multiprocessing, sys
import torch  # whose sums differ in their last digits with the number of threads

PAIR = (sys.argv[1], "A cup of coffee and a spoon on a red saucer")

def ground(grounder, queue=None):
    found = str([(phrase.text, [round(end) for end in phrase.box]) for phrase in grounder.ground(*PAIR).phrases])
    return found if queue is None else queue.put(found)

class Photos(torch.utils.data.Dataset):
    def __init__(self, grounder):
        self.grounder = grounder

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return ground(self.grounder)

def main():
    from phrasechain import Grounder

    torch.set_num_threads(2)
    method, is_used = sys.argv[2], sys.argv[3] == "used"
    grounder = Grounder.from_pretrained()
    if is_used:  # the threads of torch are there
        ground(grounder)
    else:  # of another computation
        torch.randn(512, 512) @ torch.randn(512, 512)
    if method == "loader":
        (found,) = torch.utils.data.DataLoader(Photos(grounder), batch_size=None, num_workers=1)
    else:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=ground, args=(grounder, queue))
        process.start()
        found = queue.get(timeout=100)
        process.join()
    assert found == ground(grounder)
    print("same")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "before"),
    [("fork", "used"), ("fork", "loaded"), ("loader", "used"), ("spawn", "used"), ("forkserver", "used")],
)
def test_another_process_finds_the_same(tmp_path: Path, method: str, before: str) -> None:
    if sys.platform == "win32" and method != "spawn":
        pytest.skip("there is no fork")
    (tmp_path / "work.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "work.py", ROOT / "photos" / "coffee.jpg", method, before]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=importing(__file__))
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
