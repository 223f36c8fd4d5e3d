# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A schematic as the Image Factory sees it: known fields only, one canonical text, its sha256 as the ID."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import yaml

from motley_lab.talos import goyaml

# Fields in the order of the canonical text: name -> a scalar kind, a list of it, or the name of another type.
TYPES: dict[str, dict[str, str]] = {
    "Schematic": {"owner": "string", "overlay": "Overlay", "customization": "Customization"},
    "Overlay": {"image": "string", "name": "string", "options": "map[string]interface {}"},
    "Customization": {
        "embeddedMachineConfiguration": "string",
        "extraKernelArgs": "[]string",
        "meta": "[]MetaValue",
        "systemExtensions": "SystemExtensions",
        "bootloader": "string",
        "secureboot": "SecureBootCustomization",
        "diskImage": "DiskImage",
    },
    "MetaValue": {"key": "uint8", "value": "string"},
    "SystemExtensions": {"officialExtensions": "[]string"},
    "SecureBootCustomization": {"enrollKeys": "string", "includeWellKnownCertificates": "bool"},
    "DiskImage": {"sectorSize": "uint"},
}
# Written even when empty.
ALWAYS = frozenset({"Schematic.customization", "MetaValue.key", "MetaValue.value", "Overlay.image", "Overlay.name"})
_TAGS = {str: "!!str", bool: "!!bool", int: "!!int", float: "!!float", type(None): "!!null"}
_OLD_WORDS = frozenset(
    spelled for word in ("y", "yes", "on", "n", "no", "off") for spelled in (word, word.capitalize(), word.upper())
) | {"<<"}
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ]\d{1,2}:\d{1,2}:\d{1,2}(\.\d+)?(Z|[-+]\d\d:\d\d)?)?")
_ESCAPES = {0: "0", 7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 27: "e", 34: '"', 92: "\\", 133: "N"}


class SchematicError(ValueError):
    """The factory's refusal, in its own words."""


def canonical(text: str) -> str:
    """The canonical text of a schematic given in YAML or JSON."""
    try:
        root = next(iter(goyaml.documents(text, flavour="1.14")), None)
    except goyaml.YamlError as error:
        raise SchematicError(str(error)) from None
    if root is None:
        raise SchematicError("EOF")  # Go's decoder on an empty body
    errors: list[str] = []
    value = _struct(root, "Schematic", errors)
    if errors:
        lines = errors[0] if len(errors) == 1 else "".join(f"\n  {error}" for error in errors).lstrip(" ")
        raise SchematicError(f"yaml: construct errors:{'' if lines.startswith(chr(10)) else ' '}{lines}")
    return goyaml.mapping(value)


def owner(text: str) -> str:
    """The owner that a canonical text names."""
    return str((yaml.safe_load(text) or {}).get("owner") or "")


def identifier(text: str) -> str:
    """The ID of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()


def extensions(text: str) -> list[str]:
    """The official extensions that a canonical text asks for."""
    customization = (yaml.safe_load(text) or {}).get("customization") or {}
    return list((customization.get("systemExtensions") or {}).get("officialExtensions") or [])


def _wrong(node: yaml.Node, kind: str) -> str:
    line = f"line {node.start_mark.line + 1}: cannot construct"
    if not isinstance(node, yaml.ScalarNode):
        return f"{line} {'!!seq' if isinstance(node, yaml.SequenceNode) else '!!map'} into {_go_name(kind)}"
    shown = node.value if len(node.value) <= 10 else f"{node.value[:7]}..."
    return f"{line} {_TAGS[type(goyaml.scalar(node))]} `{shown}` into {_go_name(kind)}"


def _go_name(kind: str) -> str:
    inner = kind.removeprefix("[]")
    return kind if inner not in TYPES else f"{kind[: -len(inner)]}schematic.{inner}"


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and goyaml.scalar(node) is None


def _struct(node: yaml.Node, kind: str, errors: list[str]) -> dict[str, Any]:
    """The fields that are set, in canonical order."""
    given: dict[str, Any] = {}
    if not isinstance(node, yaml.MappingNode):
        if not _is_null(node):
            errors.append(_wrong(node, kind))
        return given
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            errors.append(f'line {line}: mapping key "{key.value}" already defined at line {seen[key.value]}')
        elif key.value not in TYPES[kind]:
            errors.append(f"line {line}: field {key.value} not found in type schematic.{kind}")
        else:
            given[key.value] = _value(value, TYPES[kind][key.value], errors)
        seen.setdefault(key.value, line)
    return {
        goyaml.Raw(name): given.get(name) or _zero(TYPES[kind][name])
        for name in TYPES[kind]
        if given.get(name) or (f"{kind}.{name}" in ALWAYS)
    }


def _zero(kind: str) -> Any:
    return goyaml.Raw('""') if kind == "string" else 0 if kind.startswith("uint") else {}


def _value(node: yaml.Node, kind: str, errors: list[str]) -> Any:
    """One field; the zero value is falsy, so that it is left out."""
    if kind in TYPES:
        return _struct(node, kind, errors)
    if _is_null(node):
        return None
    if kind.startswith("[]"):
        if not isinstance(node, yaml.SequenceNode):
            errors.append(_wrong(node, kind))
            return None
        items = [_value(item, kind[2:], errors) for item in node.value]
        return [_zero(kind[2:]) if item is None else item for item in items]
    if kind.startswith("map"):
        return _free(goyaml.plain(node)) if isinstance(node, yaml.MappingNode) else errors.append(_wrong(node, kind))
    found = goyaml.scalar(node) if isinstance(node, yaml.ScalarNode) else None
    match kind:
        case "string" if isinstance(node, yaml.ScalarNode):
            return _text(node.value) if node.value else None
        case "bool" if isinstance(found, bool):
            return found
        case "uint" | "uint8" if isinstance(found, int) and not isinstance(found, bool):
            if 0 <= found < (256 if kind == "uint8" else 2**64):
                return found
    errors.append(_wrong(node, kind))
    return None


def _free(value: Any) -> Any:
    """Overlay options: any data, keys in the order in which Go writes a map."""
    if isinstance(value, dict):
        return {_text(key): _free(value[key]) for key in sorted(value, key=goyaml.natural)}
    if isinstance(value, list):
        return [_free(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """A string as it stands in the canonical text; several lines stay as they are and become a block."""
    unsafe = any(not _printable(character) for character in text)
    trailing = any(line != line.rstrip(" ") for line in text.split("\n")[:-1])
    if "\n" in text:
        block = not unsafe and not trailing and bool(text.strip()) and not text.endswith(" ")
        return text if block else goyaml.Raw(_double(text))
    another = not isinstance(goyaml.resolve(text), str) or bool(_DATE.fullmatch(text))
    if unsafe or another:
        return goyaml.Raw(_double(text))
    if text in _OLD_WORDS or _BASE_60.fullmatch(text) or _has_syntax(text):
        return goyaml.Raw("'" + text.replace("'", "''") + "'")
    return goyaml.Raw(text)


def _printable(character: str) -> bool:
    number = ord(character)
    return number == 10 or 32 <= number < 127 or 160 <= number < 0xFFFE and number != 0xFEFF and number != 0x2028


def _has_syntax(text: str) -> bool:
    first, second = text[0], text[1:2]
    return (
        text.startswith(("---", "..."))
        or first in "#,[]{}&*!|>'\"%@` "
        or (first in "-?:" and second in ("", " "))
        or text.endswith((" ", ":"))
        or ": " in text
        or " #" in text
    )


def _double(text: str) -> str:
    def escaped(character: str) -> str:
        number = ord(character)
        if number in _ESCAPES:
            return f"\\{_ESCAPES[number]}"
        if _printable(character):
            return character
        width = 2 if number < 256 else 4 if number < 65536 else 8
        return f"\\{ {2: 'x', 4: 'u', 8: 'U'}[width]}{number:0{width}X}"

    return f'"{"".join(map(escaped, text))}"'
