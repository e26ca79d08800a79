"""The restricted pickle reader: plain data of Python 2 and 3 comes through, nothing runs."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.store.importers.plain_pickle import MAX_BYTES, read_plain_pickle

numbers = st.integers(-(2**59), 2**59) | st.floats(allow_nan=False) | st.booleans() | st.none()
plain = st.recursive(
    numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 99), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_through(tmp_path: Path, value: object, protocol: int):
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol))
    assert read_plain_pickle(tmp_path / "p") == value


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"\x80\x02}q\x00(U\x041000q\x01K\x00U\x05caf\xe9sq\x02K\x01u.", {"1000": 0, "cafés": 1}),  # protocol 2
        (b"(dp0\nS'1000'\np1\nI0\nsS'2000'\np2\nL1L\ns.", {"1000": 0, "2000": 1}),  # protocol 0
    ],
)
def test_pickles_of_python_2(tmp_path: Path, data: bytes, wanted: dict):
    (tmp_path / "p").write_bytes(data)
    assert read_plain_pickle(tmp_path / "p") == wanted


class Command:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_command_in_a_pickle_does_not_run(tmp_path: Path, protocol: int):
    (tmp_path / "p").write_bytes(pickle.dumps({"1000": Command(tmp_path / "witness")}, protocol))
    with pytest.raises(DataError, match="is not allowed"):
        read_plain_pickle(tmp_path / "p")
    assert not (tmp_path / "witness").exists()
    pickle.loads((tmp_path / "p").read_bytes())  # the trap is real
    assert (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(np.int64(3)),
        pickle.dumps(np.zeros(3)),
        pickle.dumps(OrderedDict(a=1)),
        pickle.dumps({(1, 2): 3}),
        pickle.dumps({1, 2}),
        pickle.dumps(bytearray(b"a"), 5),
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"P1\n.",  # a persistent id
        b"Nr\xff\xff\xff\x7f.",  # memo slot 2³¹ − 1: the unpickler would allocate all before it
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # 2⁶³ − 1 bytes that are not there
        b"\x8a\x20" + b"\xff" * 31 + b"\x01.",  # a number of 256 bits
        b"L" + b"9" * 5000 + b"L\n.",
        b"}]Ns.",  # a list as a key
        b"]a.",
        b"K\x01K\x02a.",
        b"h\x05.",
        b"0.",
        b"",
        b".",
        b"\x80\xff.",
    ],
)
def test_anything_else_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(DataError, match="not a pickle of plain") as caught:
        read_plain_pickle(tmp_path / "p")
    assert "\n" not in str(caught.value)


def test_a_huge_pickle_is_refused(tmp_path: Path):
    with (tmp_path / "p").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match="larger than"):
        read_plain_pickle(tmp_path / "p")
    with pytest.raises(DataError, match="cannot be read"):
        read_plain_pickle(tmp_path / "absent")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.tuples(plain, st.integers(0, 99)).map(lambda p: pickle.dumps(p[0], 2)[: p[1]]))
def test_arbitrary_bytes_give_an_error_or_plain_data(tmp_path: Path, data: bytes):
    (tmp_path / "p").write_bytes(data)
    try:
        value = read_plain_pickle(tmp_path / "p")
    except DataError:
        return
    assert value is None or type(value) in (dict, list, str, bytes, int, float, bool)
