"""Files are whole or not there."""

from __future__ import annotations

import json
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pearl.errors import InputError
from pearl.files import check_writable, write_whole


def test_text_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_whole(tmp_path / "text", "a\r\nµ\n")
    assert (tmp_path / "text").read_bytes() == "a\r\nµ\n".encode()
    write_whole(tmp_path / "text", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == b"\x00\xff"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def interrupted(_self: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_of_any_file_can_be_written_down(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.yaml")
    write_whole(tmp_path / "result.json", json.dumps({"scenario": name}, ensure_ascii=False))
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8")) == {"scenario": name}


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_system_takes_it(tmp_path: Path, name: str) -> None:
    check_writable(tmp_path / name)
    write_whole(tmp_path / name, "x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    """As where the disk is full: here the process may write no longer files."""
    path = tmp_path / "result"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*: File too large"):
            write_whole(path, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_writers_of_one_file_do_not_disturb_one_another(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def write(letter: str) -> None:
        for _ in range(300):
            write_whole(path, letter * 1000)

    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(write, "abcd"):
            pass
    assert path.read_text() in {letter * 1000 for letter in "abcd"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(timeout=5)
    assert read == ["through"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        write_whole(tmp_path / "no" / "file", "x")
    with pytest.raises(InputError, match=r"cannot write .*: Is a directory"):
        write_whole(tmp_path, "x")


def test_a_check_says_what_writing_would_and_leaves_no_trace(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    check_writable(kept)
    check_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "old"
    for path in (tmp_path / "no" / "file", tmp_path, kept / "below", tmp_path / ("n" * 300)):
        with pytest.raises(InputError, match=r"cannot write ") as checked:
            check_writable(path)
        with pytest.raises(InputError) as written:
            write_whole(path, "x")
        assert str(checked.value) == str(written.value)


def test_a_check_does_not_open_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    assert pipe.is_fifo()
