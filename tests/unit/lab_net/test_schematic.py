# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's factory gives the real factory's IDs and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from motley_lab.services import schematic

CASES = json.loads(Path(__file__).with_name("schematics.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", [case for case in CASES if "id" in case], ids=lambda case: case["input"][-40:])
def test_canonical_text_and_id(case: dict[str, Any]) -> None:
    text = schematic.canonical(case["input"])
    assert text == case["canonical"]
    assert schematic.identifier(text) == case["id"]


@pytest.mark.parametrize("case", [case for case in CASES if "id" in case], ids=lambda case: case["input"][-40:])
def test_canonical_text_is_its_own_canonical_text(case: dict[str, Any]) -> None:
    assert schematic.canonical(case["canonical"]) == case["canonical"]


@pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=lambda case: case["error"])
def test_refusals(case: dict[str, Any]) -> None:
    with pytest.raises(schematic.SchematicError) as caught:
        schematic.canonical(case["input"])
    assert str(caught.value) == case["error"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\n", "yaml: construct errors:\n  line 1: field a not found in type schematic.Schematic\n"
                         "  line 2: field b not found in type schematic.Schematic"),
        ("customization:\n  meta: [{key: 300, value: x}]\n", "yaml: construct errors: line 2: cannot construct !!int `300` into uint8"),
        ("customization: [a]\n", "yaml: construct errors: line 1: cannot construct !!seq into schematic.Customization"),
        ("overlay: {}\noverlay: {}\n", 'yaml: construct errors: line 2: mapping key "overlay" already defined at line 1'),
        ("", "EOF"),
    ],
)  # fmt: skip
def test_more_refusals(text: str, message: str) -> None:
    with pytest.raises(schematic.SchematicError) as caught:
        schematic.canonical(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "written"),
    [("plain", "plain"), ("off", "'off'"), ("0b11", '"0b11"'), (".5", '".5"'), ("é", "é"), ("a\u0007b", '"a\\ab"'), ("it's", "it's")],
)
def test_quoting(value: str, written: str) -> None:
    text = schematic.canonical(json.dumps({"customization": {"extraKernelArgs": [value]}}))
    assert text.splitlines()[-1] == f"        - {written}"


def test_empty_fields_are_left_out() -> None:
    given = {"owner": "", "customization": {"bootloader": "", "secureboot": {"includeWellKnownCertificates": False}, "diskImage": {"sectorSize": 0}}}
    assert schematic.canonical(json.dumps(given)) == "customization: {}\n"


def test_extensions_of_a_schematic() -> None:
    text = schematic.canonical("customization: {systemExtensions: {officialExtensions: [siderolabs/b, siderolabs/a]}}")
    assert schematic.extensions(text) == ["siderolabs/b", "siderolabs/a"]
    assert schematic.extensions("customization: {}\n") == []
