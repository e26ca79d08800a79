"""A restricted unpickler for plain data: dicts, lists, strings and numbers. Anything else is refused unexecuted."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from phrasechain.core.errors import library_errors
from phrasechain.core.files import read_bounded

MAX_BYTES = 1 << 24
MAX_NUMBER = 1 << 60  # larger ones can be crafted to collide as dict keys
_CONTAINERS = {"EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "MARK"}
_NUMBERS = {"INT", "LONG", "FLOAT", "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "LONG4"}
_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_MEMO = {"GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_KEEPS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_PLAIN = _CONTAINERS | _NUMBERS | _TEXTS | _BYTES | _MEMO | {"NONE", "NEWTRUE", "NEWFALSE", "PROTO", "FRAME", "STOP"}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_plain_pickle(path: Path) -> Any:
    """The dicts, lists, strings and numbers of a pickle written by Python 2 or 3.

    Every opcode is checked against an allow-list first. It has none that import, call or build objects, so no code of
    the file can run. Byte strings of Python 2 become strings (Latin-1).
    """
    data = read_bounded(path, MAX_BYTES)
    with library_errors(f"{path}: not a pickle of plain dicts, lists, texts and numbers"):
        _check_opcodes(data)
        return _PlainUnpickler(io.BytesIO(data), encoding="latin1").load()


def _check_opcodes(data: bytes) -> None:
    kept = 0  # places of the memo that are in use
    for opcode, argument, position in pickletools.genops(data):
        if opcode.name not in _PLAIN:
            raise pickle.UnpicklingError(f"{opcode.name} at byte {position} is not allowed")
        if isinstance(argument, int) and abs(argument) >= MAX_NUMBER:
            raise pickle.UnpicklingError(f"the number at byte {position} is too large")
        if opcode.name in _MEMO and argument is not None and int(argument) > 2 * kept + 1:  # Python counts from 0 or 1
            raise pickle.UnpicklingError(f"{opcode.name} at byte {position} is out of range")
        kept += opcode.name in _KEEPS
