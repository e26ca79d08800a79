"""Which runs there are, in which order and in which part."""

import pytest

from phrasechain.core.errors import DataError
from phrasechain.data.photos import ShardNumber
from phrasechain.training.compare.plan import Job, choose_rows, plan_jobs, seconds_left
from phrasechain.training.compare.rows import ROWS
from tiny_grounding import tiny_config

BASE = tiny_config()


def test_rows_that_would_repeat_others_are_left_out_with_the_reason() -> None:
    wanted, absent = choose_rows(BASE, None)
    assert set(absent) == {"HL (GloVe)", "SL-CCRF learned words"}
    assert [*wanted] == [row for row in ROWS if row not in absent]
    assert choose_rows(BASE, ["SL", "BAN", "SL"]) == (["BAN", "SL"], {})


def test_one_that_is_asked_for_by_name_is_refused() -> None:
    with pytest.raises(DataError, match=r"row 'HL \(GloVe\)': needs ELMo weights"):
        choose_rows(BASE, ["HL", "HL (GloVe)"])
    with pytest.raises(DataError, match="no row named 'LS'"):
        choose_rows(BASE, ["LS"])


def test_every_row_once_before_other_seeds() -> None:
    rows = ["BAN", "SL-CCRF", "SL-CCRF M+LR"]
    jobs = plan_jobs(rows, 3, 2)
    assert jobs[:3] == [Job(row, 0) for row in rows]
    assert jobs[3:6] == [Job(row, 1) for row in rows]
    assert jobs[6:] == [Job("BAN", 2), Job("SL-CCRF", 2)]


def test_shards_share_all_runs_evenly() -> None:
    rows = list(ROWS)
    whole = plan_jobs(rows, 3, 2)
    parts = [plan_jobs(rows, 3, 2, ShardNumber(number, 4)) for number in range(1, 5)]
    assert sorted(job for part in parts for job in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_time_left_is_that_of_the_same_row_or_of_the_mean() -> None:
    took = {Job("SL", 0): 10.0, Job("SL", 1): 20.0, Job("BAN", 0): 60.0}
    assert seconds_left([Job("SL", 2)], took) == 15
    assert seconds_left([Job("SL", 2), Job("DDPN", 0)], took) == 45
    assert seconds_left([], took) == 0
    assert seconds_left([Job("SL", 2)], {}) is None
