# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Label and field selectors."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from motley_lab.kube.errors import Json, bad_request

_SET_RULE = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<how>in|notin)\s*\((?P<values>[^)]*)\)\s*$")


@dataclasses.dataclass(frozen=True)
class Selector:
    labels: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(key, in|notin|exists|absent, values)"""
    fields: tuple[tuple[str, bool, str], ...] = ()
    """(path, equal, value)"""

    def takes(self, document: Json) -> bool:
        labels = document["metadata"].get("labels", {})
        for key, how, values in self.labels:
            good = {"in": labels.get(key) in values, "notin": labels.get(key) not in values, "exists": key in labels, "absent": key not in labels}
            if not good[how]:
                return False
        return all((_at(document, path) == value) is equal for path, equal, value in self.fields)


def _at(document: Json, path: str) -> str:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def parse(label_selector: str, field_selector: str) -> Selector:
    labels: list[tuple[str, str, tuple[str, ...]]] = []
    for part in _parts(label_selector):
        if rule := _SET_RULE.match(part):
            labels.append((rule["key"], rule["how"], tuple(value.strip() for value in rule["values"].split(","))))
        elif "!=" in part:
            key, value = part.split("!=", 1)
            labels.append((key.strip(), "notin", (value.strip(),)))
        elif "=" in part:
            key, value = re.split("==?", part, maxsplit=1)
            labels.append((key.strip(), "in", (value.strip(),)))
        elif " " in part:
            raise bad_request(f"unable to parse requirement: found '{part.split()[1]}', expected: in, notin, =, ==, !=, gt, lt")
        else:
            labels.append((part.lstrip("!"), "absent" if part.startswith("!") else "exists", ()))
    fields: list[tuple[str, bool, str]] = []
    for part in _parts(field_selector):
        found = re.match(r"^([^!=]+)(!=|==|=)(.*)$", part)
        if found is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        fields.append((found[1], found[2] != "!=", found[3]))
    return Selector(tuple(labels), tuple(fields))
