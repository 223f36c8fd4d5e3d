# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests are recorded whole, faults are seen at once, and both per node."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from motley_lab import faults
from motley_lab.record import FIELDS, read, record, writes


def test_a_record_has_the_agreed_fields(tmp_path: Path) -> None:
    record(tmp_path, server="kube", method="GET", path="/api", status=200, node="x86-01", agent="test")
    entry = json.loads((tmp_path / "requests.jsonl").read_text())
    assert tuple(entry) == FIELDS
    assert (entry["server"], entry["node"], entry["status"], entry["dry_run"]) == ("kube", "x86-01", 200, False)


def test_writes_are_neither_reads_nor_dry_runs(tmp_path: Path) -> None:
    for method, dry_run in [("GET", False), ("HEAD", False), ("POST", True), ("PATCH", False), ("DELETE", False)]:
        record(tmp_path, server="kube", method=method, path="/", status=200, dry_run=dry_run)
    assert [entry["method"] for entry in writes(tmp_path)] == ["PATCH", "DELETE"]


def test_lines_of_many_writers_never_mix(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(50):
            record(tmp_path, server="kube", method="GET", path="/" + str(number) * 900, status=200)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [entry["path"] for entry in read(tmp_path)]
    assert len(paths) == 400
    assert all(len(set(path[1:])) == 1 for path in paths)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, server="kube", method="GET", path="/", status=200)
    with (tmp_path / "requests.jsonl").open("a") as lines:
        lines.write('{"time": 1')
    assert len(list(read(tmp_path))) == 1


def test_a_lab_that_is_gone_is_no_error(tmp_path: Path) -> None:
    record(tmp_path / "gone", server="kube", method="GET", path="/", status=200)
    assert list(read(tmp_path / "gone")) == []
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("on", "asked", "expected"),
    [
        (None, None, True),
        (None, "x86-01", True),
        ("x86-01", "x86-01", True),
        ("x86-01", "spark-01", False),
        ("x86-01", None, False),
    ],
)
def test_a_fault_is_for_all_or_for_one_node(tmp_path: Path, on: str | None, asked: str | None, expected: bool) -> None:
    faults.add(tmp_path, "hub-down", node=on)
    assert (faults.active(tmp_path, "hub-down", asked) is not None) == expected


def test_a_fault_keeps_its_settings_and_goes_away(tmp_path: Path) -> None:
    faults.add(tmp_path, "factory-slow", settings={"seconds": "1"})
    faults.add(tmp_path, "factory-slow", settings={"seconds": "2"})
    assert faults.active(tmp_path, "factory-slow") == {"name": "factory-slow", "seconds": "2"}
    assert [entry["name"] for entry in faults.listed(tmp_path)] == ["factory-slow"]
    assert faults.remove(tmp_path, "factory-slow")
    assert not faults.remove(tmp_path, "factory-slow")
    assert faults.active(tmp_path, "factory-slow") is None


def test_remove_without_a_node_removes_it_everywhere(tmp_path: Path) -> None:
    faults.add(tmp_path, "hub-down", node="x86-01")
    faults.add(tmp_path, "hub-down", node="spark-01")
    assert faults.remove(tmp_path, "hub-down", node="x86-01")
    assert faults.active(tmp_path, "hub-down", "spark-01")
    assert faults.remove(tmp_path, "hub-down")
    assert faults.listed(tmp_path) == []


def test_an_unknown_fault_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(faults.UnknownFault, match="image-amd64-only"):
        faults.add(tmp_path, "image-amd-only")
    assert faults.listed(tmp_path) == []


def test_every_fault_says_where_it_acts() -> None:
    places = {text.partition(":")[0] for text in faults.FAULTS.values()}
    assert {"registry", "factory", "hub"} <= places
    assert all(text.partition(":")[2].strip() for text in faults.FAULTS.values())
