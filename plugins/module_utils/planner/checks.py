# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of plain data at the planner's door: every wrong value becomes a sentence, none a traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.planner.device import nearest


def mapping(value: Any, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    """A mapping with no key that is not known."""
    if not isinstance(value, Mapping):
        raise MotleyError(f"{where} must be a mapping, not {_kind(value)}", hint="keys: " + ", ".join(known))
    for key in value:
        if not isinstance(key, str) or key not in known:
            raise MotleyError(f"{where} has an unknown key {key!r}", hint=nearest(str(key), list(known)))
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """A list (a tuple will do), not text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise MotleyError(f"{where} must be a list, not {_kind(value)}", hint="write it as a YAML list")
    return value


def text(value: Any, where: str, default: str | None = None) -> str:
    """Text that is not empty."""
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip():
        raise MotleyError(f"{where} must be text, not {_kind(value)}", hint=f"give {where} as a non-empty string")
    return value


def choice(value: Any, where: str, known: Sequence[str], default: str) -> str:
    """One of a few words."""
    word = text(value, where, default)
    if word not in known:
        raise MotleyError(f"{where} cannot be {word!r}", hint=nearest(word, list(known)))
    return word


def flag(value: Any, where: str, default: bool | None = None) -> bool | None:
    """True or false."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise MotleyError(f"{where} must be true or false, not {_kind(value)}", hint="write true or false without quotes")
    return value


def whole(value: Any, where: str, *, least: int = 1, most: int = 10**8) -> int | None:
    """A whole number within bounds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        if not (isinstance(value, float) and value.is_integer()):
            raise MotleyError(f"{where} must be a whole number, not {_kind(value)}", hint=f"give a number from {least} to {most}")
        value = int(value)
    if not least <= value <= most:
        raise MotleyError(f"{where} must be from {least} to {most}, not {value}", hint=f"give a number from {least} to {most}")
    return int(value)


def number(value: Any, where: str, *, least: float = 0.0, most: float = 1e9, above: bool = False) -> float | None:
    """A finite number within bounds, or None; above: the lower bound itself is out."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MotleyError(f"{where} must be a number, not {_kind(value)}", hint=f"give a number from {least:g} to {most:g}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or not least <= result <= most or (above and result == least):
        raise MotleyError(
            f"{where} must be {'above' if above else 'from'} {least:g} up to {most:g}, not {value}", hint="give a finite number in that range"
        )
    return result


def _kind(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 40 else shown[:37] + '...'}"
