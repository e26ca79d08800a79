"""What several commands have in common."""

import os

import pytest

from phrasechain.cli.common import wait_without_spinning


def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, after in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        monkeypatch.setattr(os, "environ", dict(before))
        wait_without_spinning()
        assert os.environ["OMP_WAIT_POLICY"] == after
