# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets out of machine configurations, talosconfigs, diffs and error texts.

Talos writes secrets in two forms: one base64 line, and PEM blocks over many lines (most of the 1.14 documents). In a
diff a block may begin or end outside the hunk, so bare base64 lines are taken out as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

GENERATED = "<generated>"

_SECRET_KEYS = (
    "key",
    "crt",
    "cert",
    "token",
    "secret",
    "id",
    "clusterID",
    "clusterSecret",
    "clientKey",
    "privateKey",
    "acceptedCAs",
    "secretboxEncryptionSecret",
    "aescbcEncryptionSecret",
    "password",
    "passphrase",
    "auth",
    "identityToken",
    "bootstraptoken",
    "secretboxencryptionsecret",
    "aescbcencryptionsecret",
    "trustdinfo",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "hfToken",
    "apiKey",
)
_LINE = re.compile(r"^(?P<pad>\s*(?:- )*)(?P<name>[\"']?[A-Za-z][\w.-]*[\"']?):(?P<gap>\s*)(?P<value>.*)$")
_SECRET_NAME = re.compile(r"(?:password|passphrase|passwd|token|secret|private_?key|api_?key|auth_?key)$", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"^(?P<head>.*\b[A-Za-z_]*(?:PASSWORD|TOKEN|SECRET|KEY)[A-Za-z_]*=)\S+(?P<tail>.*)$", re.IGNORECASE)
_BASE64 = re.compile(r"^[A-Za-z0-9+/_-]+={0,2}$")
_LONG_BASE64 = re.compile(r"^[A-Za-z0-9+/]{40,}={0,2}$")
_HEX = re.compile(r"^[0-9a-f]+$")
_BOOTSTRAP_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")


def redact(text: str, *, secrets: Iterable[str] = (), placeholder: str = GENERATED) -> str:
    """The text with every secret replaced; works on YAML, on unified diffs of YAML and on error output."""
    for value in sorted({value for value in secrets if len(value) >= 6}, key=len, reverse=True):
        text = text.replace(value, placeholder)
    return "\n".join(_lines(text.split("\n"), placeholder))


def _lines(lines: list[str], placeholder: str) -> Iterable[str]:
    block: int | None = None  # indentation of the secret key whose block scalar we are in
    in_pem = False
    diff = any(line.startswith("@@ ") for line in lines)
    for number, line in enumerate(lines):
        sign, body = (line[:1], line[1:]) if diff and line[:1] in ("+", "-", " ") else ("", line)
        bare = body.strip()
        indent = len(body) - len(body.lstrip())
        if block is not None and bare and indent <= block:
            block = None
        if line.startswith("@@ "):
            block, in_pem = None, False
        if "-----BEGIN " in bare and "-----END " not in bare:
            in_pem = True
            yield f"{sign}{' ' * indent}{_before_pem(bare)}{placeholder}"
            continue
        if in_pem:
            in_pem = "-----END " not in bare
            continue
        if "-----END " in bare or _is_blob(bare, lines, number):
            yield f"{sign}{' ' * indent}{'- ' if bare.startswith('- ') else ''}{placeholder}"
            continue
        if block is not None and bare:
            yield f"{sign}{' ' * indent}{placeholder}"
            continue
        found = _LINE.match(body)
        if found and _is_secret_name(found["name"]) and found["value"].strip():
            value = found["value"].strip()
            if value in ("|", "|-", "|+", ">", ">-"):
                block = indent
                yield line
            elif value in ('""', "''", "[]", "{}", "null") or _is_harmless(found["name"], value):
                yield line
            else:
                yield f"{sign}{found['pad']}{found['name']}:{found['gap']}{placeholder}"
            continue
        if found and _long(found["value"].strip().strip("\"'")):
            yield f"{sign}{found['pad']}{found['name']}:{found['gap']}{placeholder}"
            continue
        assigned = _ASSIGNMENT.match(line)
        line = f"{assigned['head']}{placeholder}{assigned['tail']}" if assigned else line
        yield _BOOTSTRAP_TOKEN.sub(placeholder, line)


def _is_secret_name(name: str) -> bool:
    bare = name.strip("\"'")
    return bare in _SECRET_KEYS or bool(_SECRET_NAME.search(bare))


def _before_pem(bare: str) -> str:
    return "- " if bare.startswith("- ") else ""


def _long(text: str) -> bool:
    """A value that can only be key material: long base64 that is neither a hash nor a path."""
    return bool(_LONG_BASE64.match(text)) and not _HEX.match(text) and text[0] != "/"


def _is_blob(bare: str, lines: list[str], number: int) -> bool:
    """A line of a PEM body, also its short last one, in a hunk that does not show the block's begin."""
    text = _core(bare)
    if _long(text):
        return True
    if not text or not _BASE64.match(text):
        return False
    after = _core(lines[number + 1]) if number + 1 < len(lines) else ""
    before = _core(lines[number - 1]) if number else ""
    return "END " in after and after.endswith("-----") or _long(before)


def _core(line: str) -> str:
    """A line without diff sign, indentation and list marks."""
    return line.lstrip("+- ").strip()


def _is_harmless(name: str, value: str) -> bool:
    """`id`, `key` and `cert` also name small things: a number, a meta key, a path."""
    return name in ("id", "key", "cert", "auth") and (value.isdigit() or value.startswith("/") or len(value) < 8)


def leaves(document: Any) -> list[str]:
    """Every text in a secrets bundle, for the removal of exact values: whole, and each line of a block."""
    match document:
        case Mapping():
            return [text for item in document.values() for text in leaves(item)]
        case list() | tuple():
            return [text for item in document for text in leaves(item)]
        case str() if len(document) >= 8 and not document[:4].isdigit():
            lines = [line for line in document.splitlines() if len(line) >= 16 and "-----" not in line]
            return [document, *lines] if lines and "\n" in document else [document]
    return []
