"""The JSON file: strict, whole or absent, and refused with a reason when it is no result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hbdebug.errors import DataError, UsageError
from hbdebug.report import record
from hbdebug.report.record import dumps_result, read_result, write_text_atomic
from tests.report.example_result import EXAMPLE, LISTING, MODEL, changed


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_file_written_is_the_result_read(tmp_path):
    path = tmp_path / "out" / "deep" / "sensitivity.json"

    write_text_atomic(path, dumps_result(EXAMPLE))

    assert read_result(path) == EXAMPLE
    assert names_in(path.parent) == ["sensitivity.json"]


def test_the_text_is_strict_indented_and_in_its_own_script():
    text = dumps_result(EXAMPLE)

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == EXAMPLE.to_json()
    assert text.startswith('{\n  "schema_version": 1,\n')
    assert text.endswith("}\n")
    assert "卷积/主干@7" in text


def test_a_listing_is_written_by_the_same_function():
    assert json.loads(dumps_result(LISTING)) == LISTING.to_json()


def test_a_path_that_is_no_text_is_escaped_and_survives(tmp_path):
    odd = b"cal\xff.onnx".decode("utf-8", "surrogateescape")
    result = changed(command=odd)
    path = tmp_path / "r.json"

    write_text_atomic(path, dumps_result(result))

    assert path.read_bytes().isascii()
    assert read_result(path) == result


def test_line_ends_and_mode_are_those_of_a_plain_file(tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    path = tmp_path / "a.txt"

    write_text_atomic(path, "a\nb\r\n")

    assert path.read_bytes() == b"a\nb\r\n"
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text_atomic(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record.os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_text_atomic(path, "new")

    assert caught.value.where == str(path)
    assert "-o DIR" in caught.value.hint
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["a.txt"]


def test_ctrl_c_during_a_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text_atomic(path, "old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_atomic(path, "new")

    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["a.txt"]


def test_a_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "r.json")

    write_text_atomic(link, "new")

    assert link.is_symlink()
    assert (tmp_path / "real" / "r.json").read_text() == "new"


@pytest.mark.parametrize("name", ["file/below.json", "directory"])
def test_a_place_that_cannot_hold_the_file_is_a_usage_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory" / "full").mkdir(parents=True)

    with pytest.raises(UsageError, match="cannot write the file") as caught:
        write_text_atomic(tmp_path / name, "text")

    assert caught.value.exit_code == 2
    assert caught.value.where == str(tmp_path / name)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON file: Expecting value at line 1, column 1"),
        (b'{\n "a": 1,', "not a JSON file: .* at line 2, column"),
        (b"\x08\x07\x12\xff\xfe\xfd", "not a JSON file"),
        (b"[" * 100_000, "not a JSON file"),
        (b"[1, 2]", "not a result of hbdebug"),
        (b'{"nodes": []}', "not a result of hbdebug: no schema_version"),
        (b'{"schema_version": 99}', "schema version 99; this hbdebug reads up to 1"),
        (b'{"schema_version": 1}', "hbdebug_version: missing"),
    ],
    ids=["empty", "cut", "onnx", "deep", "list", "other", "newer", "bare"],
)
def test_what_is_no_result_is_refused_with_its_place(tmp_path, content, message):
    path = tmp_path / "sensitivity.json"
    path.write_bytes(content)

    with pytest.raises(DataError, match=message) as caught:
        read_result(path)

    assert caught.value.exit_code == 4
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.hint


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_result(tmp_path / "none.json")
    with pytest.raises(DataError, match="this is a directory"):
        read_result(tmp_path)


def test_the_record_of_a_listing_is_no_sensitivity_result(tmp_path):
    path = tmp_path / "info.json"
    write_text_atomic(path, dumps_result(LISTING))

    with pytest.raises(DataError, match="'listing' record") as caught:
        read_result(path)

    assert caught.value.where == str(path)
    assert MODEL.path in path.read_text()
