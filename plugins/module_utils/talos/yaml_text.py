# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML written the way the Image Factory and talosctl write it.

The factory names a schematic by the hash of this text, so every space and every quote counts. The same form serves for
the patches that Motley hands to talosctl: its writer quotes `off`, `on`, `yes` and `no`, which YAML 1.1 readers turn
into booleans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_INDENT = 4

# What a YAML reader would take for something else than text: these are double-quoted.
_OTHER_TYPE = re.compile(
    r"""^(?:
        | ~ | null | Null | NULL | true | True | TRUE | false | False | FALSE
        | [-+]?0b[01_]+ | [-+]?0o[0-7_]+ | [-+]?0x[0-9a-fA-F_]+ | [-+]?[0-9][0-9_]*
        | [-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?
        | [-+]?\.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN)
        | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?.*)?
    )$""",
    re.VERBOSE,
)
# What only an old reader takes for something else: single-quoted.
_OLD_TYPE = re.compile(r"^(?:y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|<<|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)$")
_FIRST_INDICATORS = "#,[]{}&*!|>'\"%@`"
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\r": "\\r", "\x00": "\\0", "\x07": "\\a", "\x08": "\\b", "\x1b": "\\e"}


def dump(value: Any) -> str:
    """The document as text, with a final newline."""
    if isinstance(value, Mapping) and value:
        return "\n".join(_mapping(value, 0)) + "\n"
    if isinstance(value, (list, tuple)) and value:
        return "\n".join(_sequence(value, 0)) + "\n"
    return _inline(value) + "\n"


def dump_all(documents: Iterable[Any]) -> str:
    """A stream of documents."""
    return "---\n".join(dump(document) for document in documents)


def _mapping(value: Mapping[str, Any], indent: int) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        lines += _entry(" " * indent + scalar(key) + ":", item, indent + _INDENT)
    return lines


def _sequence(value: list[Any] | tuple[Any, ...], indent: int) -> list[str]:
    lines: list[str] = []
    pad = " " * indent
    for item in value:
        if isinstance(item, Mapping) and item:
            inner = _mapping(item, indent + 2)
            lines += [pad + "- " + inner[0][indent + 2 :], *inner[1:]]
        elif isinstance(item, (list, tuple)) and item:
            inner = _sequence(item, indent + 2)
            lines += [pad + "- " + inner[0][indent + 2 :], *inner[1:]]
        else:
            lines += _entry(pad + "-", item, indent + 2)
    return lines


def _entry(head: str, item: Any, inner: int) -> list[str]:
    if isinstance(item, Mapping) and item:
        return [head, *_mapping(item, inner)]
    if isinstance(item, (list, tuple)) and item:
        return [head, *_sequence(item, inner)]
    if isinstance(item, str) and _is_block(item):
        return [head + " " + _block_head(item), *_block_lines(item, inner)]
    return [head + " " + _inline(item)]


def _inline(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return scalar(value)
        case Mapping():
            return "{}"
        case list() | tuple():
            return "[]"
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _is_block(text: str) -> bool:
    return "\n" in text and all(char in "\n\t" or char.isprintable() for char in text)


def _block_head(text: str) -> str:
    # A first line that starts with a blank needs its indentation spelled out, else the reader guesses it wrong.
    hint = str(2) if text[:1] in (" ", "\n") else ""
    if not text.endswith("\n"):
        return f"|{hint}-"
    return f"|{hint}+" if text.endswith("\n\n") or text == "\n" else f"|{hint}"


def _block_lines(text: str, indent: int) -> list[str]:
    body = text[:-1] if text.endswith("\n") else text
    return [" " * indent + line if line else "" for line in body.split("\n")]


def scalar(text: str) -> str:
    """One string as it stands in the file."""
    text = str(text)
    if _OTHER_TYPE.match(text):
        return _double(text)
    if any(not char.isprintable() for char in text):
        return _double(text)
    if _OLD_TYPE.match(text) or not _plain_is_safe(text):
        return "'" + text.replace("'", "''") + "'"
    return text


def _plain_is_safe(text: str) -> bool:
    if text != text.strip(" ") or text.startswith(("---", "...")) or text[0] in _FIRST_INDICATORS:
        return False
    if text[0] in "-?:" and (len(text) == 1 or text[1] == " "):
        return False
    return not (": " in text or text.endswith(":") or " #" in text)


def _double(text: str) -> str:
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char == "\n":
            out.append("\\n")
        elif not char.isprintable():
            code = ord(char)
            out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'
