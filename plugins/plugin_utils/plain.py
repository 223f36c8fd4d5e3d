# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain Python data out of what Ansible hands over (lazy containers, tagged scalars)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def to_plain(value: Any) -> Any:
    """Deep copy of value made of exact dict, list, str, int, float, bool and None.

    ansible-core 2.19 and later tags scalars by subclassing them; writers of JSON and YAML and the messages of the
    argument validator need the exact types. Raises TypeError for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(value[key]) for key in value}
    if isinstance(value, (Sequence, set, frozenset)):
        return [to_plain(item) for item in value]
    raise TypeError(f"a value of type {type(value).__name__} is no plain data")
