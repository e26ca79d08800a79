"""Bounded reading, writing all or nothing, and where caches go."""

import os
import sys
from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.core.files import (
    cache_folder,
    private_folder,
    read_bounded,
    read_cached,
    require_writable,
    write_atomically,
    write_cached,
    write_output,
)


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(DataError, match="larger than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(DataError, match="none: cannot be read: No such file"):
        read_bounded(tmp_path / "none", 4)


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_made_are_refused_before_the_work(tmp_path: Path) -> None:
    require_writable(None, tmp_path / "new", Path("new"))
    with pytest.raises(DataError, match=r"cannot be written: there is no folder .*none"):
        require_writable(tmp_path / "none" / "new")
    with pytest.raises(DataError, match="cannot be written: it is a folder"):
        require_writable(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_plain_file_is_written_through(tmp_path: Path) -> None:
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    link.symlink_to(target)
    write_output(link, b"data")
    assert link.is_symlink()
    assert target.read_bytes() == b"data"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, b"data")
        assert os.read(reader, 10) == b"data"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="a: cannot be written: No space left on device"):
        write_output(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"PHRASECHAIN_CACHE": "/chosen"}, "/chosen"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/phrasechain"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/phrasechain"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/Library/Caches/phrasechain"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/phrasechain"),
        ("win32", {}, "/home/me/AppData/Local/phrasechain"),
    ],
)
def test_caches_go_where_the_platform_keeps_them(
    platform: str, variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHRASECHAIN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert cache_folder() == Path(folder)


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("PHRASECHAIN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError, match="Not a directory"):
        cache_folder().mkdir(parents=True)


@pytest.mark.skipif(os.name == "nt", reason="permissions are others there")
def test_a_cache_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "cache" / "regions")
    assert folder is not None
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    assert private_folder(folder) is None
    (tmp_path / "file").touch()
    assert private_folder(tmp_path / "file" / "x") is None


def test_a_cached_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert read_cached(file) is None
    write_cached(file, b"content")
    assert read_cached(file) == b"content"
    for damaged in (b"", b"short", file.read_bytes()[:-1], file.read_bytes() + b"x", bytes(40)):
        file.write_bytes(damaged)
        assert read_cached(file) is None
    write_cached(tmp_path / "none" / "a", b"content")  # where nothing can be written, nothing is kept


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written: .*file is not a folder"):
        require_writable(tmp_path / "file" / "a.png")
    with pytest.raises(DataError, match="there is no folder"):
        require_writable(tmp_path / "none" / "a.png")
