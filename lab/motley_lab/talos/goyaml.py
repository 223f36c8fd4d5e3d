# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML as Go's YAML library reads and writes it: scalar rules, quoting, indentation and error texts."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import yaml

_Loader = getattr(yaml, "CLoader", yaml.Loader)
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OLD_BOOL = {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF"}
_INT = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[0-9]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASE60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")


class YamlError(Exception):
    """A stream that the parser refuses; the text is without the leading ``yaml: ``."""


class Raw(str):
    """Text that is written as it is, without quoting (durations, octal modes)."""


def documents(text: str, *, flavour: str = "1.13") -> Iterator[Any]:
    """Yield the root node of each document; raise YamlError where the stream breaks."""
    loader = _Loader(text)
    try:
        while True:
            try:
                if not loader.check_node():
                    return
                node = loader.get_node()
            except yaml.MarkedYAMLError as error:
                raise YamlError(_parser_text(error, flavour)) from None
            except yaml.reader.ReaderError:
                raise YamlError("yaml: control characters are not allowed") from None
            if node is not None:
                yield node
    finally:
        loader.dispose()


def _parser_text(error: yaml.MarkedYAMLError, flavour: str) -> str:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    where = f" ({error.context})" if error.context else ""
    stage = "scanner" if isinstance(error, yaml.scanner.ScannerError) or "scanning" in str(error.context) else "parser"
    if flavour != "1.13":
        at = f"L{line + 1}.C{column + 1}"
        return f"go-yaml load error in {stage}{where} at {at}: {error.problem}"
    place = f"line {line}" + (f", column {column + 1}" if column else "") if line else "<unknown position>"
    if error.context:
        return f"yaml: {error.context} at {place}: {error.problem}"
    return f"yaml: {place}: {error.problem}"


def resolve(value: str) -> Any:
    """The Go value of a plain scalar."""
    if value in _NULL:
        return None
    if value in _BOOL:
        return _BOOL[value]
    plain = value.replace("_", "")
    if plain and plain[0] in "+-.0123456789":
        if _INT.fullmatch(plain):
            body = plain.lstrip("+-")
            base = {"x": 16, "o": 8, "b": 2}.get(body[1:2].lower(), 8 if len(body) > 1 and body[0] == "0" else 10)
            try:
                number = int(body[2:] if body[1:2].lower() in "xob" and len(body) > 2 else body, base)
            except ValueError:
                return value
            return -number if plain[0] == "-" else number
        if _FLOAT.fullmatch(plain):
            return float(plain)
    if value.lower() in (".inf", "-.inf", "+.inf", ".nan"):
        return float(value.lower().replace(".", ""))
    return value


def scalar(node: yaml.ScalarNode) -> Any:
    """The Go value of a scalar node: quoted text stays text."""
    return resolve(node.value) if node.style in (None, "") else node.value


def plain(node: yaml.Node) -> Any:
    """Any node as plain data."""
    if isinstance(node, yaml.ScalarNode):
        return scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [plain(item) for item in node.value]
    if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
        raise YamlError("yaml: invalid map key")
    return {key.value: plain(value) for key, value in node.value}


def load(text: str) -> Any:
    """The first document as plain data."""
    for node in documents(text):
        return plain(node)
    return None


def _less(one: str, two: str) -> int:
    digits = False
    for position, (a, b) in enumerate(zip(one, two, strict=False)):
        if a == b:
            digits = a.isdigit()
            continue
        if a.isalpha() and b.isalpha():
            return -1 if a < b else 1
        if a.isalpha() or b.isalpha():
            return (-1 if a.isalpha() else 1) if digits else (-1 if b.isalpha() else 1)
        left, right = re.match(r"\d*", one[position:]), re.match(r"\d*", two[position:])
        if left and right and left[0] and right[0] and int(left[0]) != int(right[0]):
            return -1 if int(left[0]) < int(right[0]) else 1
        return -1 if a < b else 1
    return len(one) - len(two)


natural = functools.cmp_to_key(_less)


def _needs_quotes(text: str) -> bool:
    if text[0] in "#,[]{}&*!|>'\"%@`" or text[0] == " " or text[-1] == " " or text.startswith(("---", "...")):
        return True
    if text[0] in "-?:" and (len(text) == 1 or text[1] in " \t"):
        return True
    return bool(re.search(r":( |$)| #", text))


def _escape(text: str) -> str:
    names = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", "\x1b": "\\e"}
    return '"' + "".join(names.get(c, c if c.isprintable() else f"\\x{ord(c):02X}") for c in text) + '"'


def quoted(text: str) -> str:
    """A string scalar in one line as Go writes it."""
    if isinstance(text, Raw):
        return str(text)
    if any(not c.isprintable() for c in text):
        return _escape(text)
    ambiguous = not isinstance(resolve(text), str) or text in _OLD_BOOL or text == "<<"
    if ambiguous or _BASE60.fullmatch(text) or _DATE.fullmatch(text):
        return _escape(text)
    return "'" + text.replace("'", "''") + "'" if _needs_quotes(text) else text


def _scalar_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        text = f"{value:g}"
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)
    return str(value)


def _flow(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return _node_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(_flow(item) for item in node.value) + "]"
    return "{" + ", ".join(f"{_flow(key)}: {_flow(value)}" for key, value in node.value) + "}"


def _node_scalar(node: yaml.ScalarNode) -> str:
    if node.style == "'":
        return "'" + node.value.replace("'", "''") + "'"
    if node.style == '"':
        return _escape(node.value)
    return str(node.value)


def _literal(text: str, indent: int) -> str:
    chomp = "-" if not text.endswith("\n") else "+" if text.endswith("\n\n") or text == "\n" else ""
    hint = "4" if text.startswith((" ", "\n")) else ""
    body = "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in text.splitlines())
    return f"|{hint}{chomp}\n{body}"


def _next(indent: int) -> int:
    return 4 * ((indent + 4) // 4)


def _emit(value: Any, *, indent: int, child: int) -> str:
    """The text after ``key:`` or ``-``, starting with a blank or a line break, ending with a line break.

    indent is the column of the holder's keys, child the column where a nested mapping would start.
    """
    if isinstance(value, yaml.Node):
        if isinstance(value, yaml.ScalarNode):
            if value.style in ("|", ">"):
                return " " + _literal(value.value, child)
            return f" {_node_scalar(value)}\n"
        if getattr(value, "flow_style", False) or not value.value:
            return f" {_flow(value)}\n"
        value = value.value if isinstance(value, yaml.SequenceNode) else {key.value: item for key, item in value.value}
    if isinstance(value, dict):
        return "\n" + mapping(value, child) if value else " {}\n"
    if isinstance(value, list):
        return "\n" + sequence(value, child) if value else " []\n"
    if isinstance(value, str) and "\n" in value and not isinstance(value, Raw):
        return " " + _literal(value, child)
    return f" {_scalar_text(value)}\n"


def mapping(value: dict[str, Any], indent: int = 0) -> str:
    """A block mapping whose keys start at the given column."""
    pad = " " * indent
    parts = [f"{pad}{quoted(key)}:{_emit(item, indent=indent, child=_next(indent))}" for key, item in value.items()]
    return "".join(parts)


def sequence(value: list[Any], indent: int = 0) -> str:
    """A block sequence whose dashes start at the given column."""
    parts = []
    for item in value:
        body = _emit(item, indent=indent, child=indent + 2)
        if body.startswith("\n"):  # a nested collection starts on the line of its dash
            body = " " + body[1:].lstrip(" ")
        parts.append(f"{' ' * indent}-{body}")
    return "".join(parts)


def dump(value: Any) -> str:
    """One document as text."""
    if isinstance(value, dict) and value:
        return mapping(value)
    if isinstance(value, list) and value:
        return sequence(value)
    return _emit(value, indent=0, child=0).lstrip(" ")


def ordered(value: Any) -> Any:
    """Free data with the keys of every map in Go's order."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value, key=natural)}
    return [ordered(item) for item in value] if isinstance(value, list) else value
