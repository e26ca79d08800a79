"""What several commands have in common."""

import os

import pytest

from phrasechain.cli.common import limit_spinning


def test_threads_spin_for_a_moment_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
    for before, after in (
        ({}, own),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "7"}, own | {"GOMP_SPINCOUNT": "7"}),
    ):
        monkeypatch.setattr(os, "environ", dict(before))
        limit_spinning()
        assert os.environ == after
