"""What an unfinished run leaves on disk is read back, and only where it fits."""

from __future__ import annotations

import math

import pytest

from hbdebug.analysis.journal import Journal
from hbdebug.analysis.scores import Scored
from hbdebug.errors import UsageError

SETTINGS = {"model": "abc", "kind": "node"}
ENTRY = Scored(
    values=((0.1 + 0.2, math.inf), (math.nan, 1e-300)), exact=True, flags=("zero_signal",)
)


def entries(journal):
    return {key: (repr(item.values), item.exact, item.flags) for key, item in journal.found.items()}


def test_what_was_added_is_found_again_to_the_last_bit(tmp_path):
    path = tmp_path / "partial.jsonl"
    with Journal(path, SETTINGS, resume=False) as journal:
        journal.add(3, 7, ENTRY)

    with Journal(path, SETTINGS, resume=True) as journal:
        assert entries(journal) == {(3, 7): (repr(ENTRY.values), True, ("zero_signal",))}
        assert "1 evaluations found" in journal.resumption()


def test_resuming_twice_keeps_everything(tmp_path):
    path = tmp_path / "partial.jsonl"
    for sample in range(3):
        with Journal(path, SETTINGS, resume=True) as journal:
            assert len(journal.found) == sample
            journal.add(sample, 0, ENTRY)


def test_a_line_cut_short_costs_that_line_only(tmp_path):
    path = tmp_path / "partial.jsonl"
    with Journal(path, SETTINGS, resume=False) as journal:
        journal.add(0, 0, ENTRY)
        journal.add(0, 1, ENTRY)
    path.write_text(path.read_text()[:-20])

    with Journal(path, SETTINGS, resume=True) as journal:
        assert set(journal.found) == {(0, 0)}
        journal.add(0, 1, ENTRY)
    with Journal(path, SETTINGS, resume=True) as journal:
        assert set(journal.found) == {(0, 0), (0, 1)}


def test_other_settings_start_anew_and_say_so(tmp_path):
    path = tmp_path / "partial.jsonl"
    with Journal(path, SETTINGS, resume=False) as journal:
        journal.add(0, 0, ENTRY)

    with Journal(path, SETTINGS | {"kind": "weight"}, resume=True) as journal:
        assert journal.found == {}
        assert "measured with another model, data, options or version" in journal.resumption()


def test_without_resume_nothing_is_kept(tmp_path):
    path = tmp_path / "partial.jsonl"
    with Journal(path, SETTINGS, resume=False) as journal:
        journal.add(0, 0, ENTRY)

    with Journal(path, SETTINGS, resume=False) as journal:
        assert journal.found == {}


def test_nothing_to_resume_is_said(tmp_path):
    with Journal(tmp_path / "partial.jsonl", SETTINGS, resume=True) as journal:
        assert journal.resumption().startswith("starting anew: there is no")


def test_a_file_that_is_no_journal_is_not_mistaken_for_one(tmp_path):
    path = tmp_path / "partial.jsonl"
    path.write_bytes(b"\xff\xfe not json\n[1, 2")

    with Journal(path, SETTINGS, resume=True) as journal:
        assert journal.found == {}


def test_a_folder_in_its_place_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(tmp_path, SETTINGS, resume=False)
