"""A training off a terminal: a line now and then, and one at the end."""

import pytest

from phrasechain.core.progress import LINE_SECONDS, StepLines, step_progress


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of ten seconds, from step 100 on: a line when half a minute has passed, with the time that is left."""
    now = 0.0
    show = StepLines(110, 100, clock=lambda: now)
    for step in range(101, 111):
        now += 10.0
        show(step, f"loss {step}")
    assert LINE_SECONDS == 30
    assert capsys.readouterr().err.splitlines() == [
        "step 103 of 110, loss 103, 1 min left",
        "step 106 of 110, loss 106, 40 s left",
        "step 109 of 110, loss 109, 10 s left",
        "step 110 of 110, loss 110, 0 s left",
    ]


def test_one_process_of_many_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with step_progress(2, 0, shown) as show:
            show(1, "one")
            show(2, "two")
    assert capsys.readouterr().err == "step 2 of 2, two, 0 s left\n"
