# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shapes of the machine configuration documents, and reading and writing a document by its shape.

`tables/documents.txt` holds one document a line: kind, contract (`*` for all), shape. In a shape `{a b:int c[]}` is
a struct in the order in which its keys are written, `*` stands for free keys, `[x]` is a list, no type means text,
`!` marks a key that is written even when it has no value, `=` a list that a patch replaces instead of extending.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from motley_lab.talos import goyaml

TABLES = Path(__file__).parent / "tables"
_INTEGERS = {"int", "uint", "int32", "uint8", "uint16", "uint32", "uint64"}
_ENUMS = {
    "AutoHostnameKind": ("off", "stable"),
    "DefaultAction": ("accept", "block"),
    "Protocol": ("icmp", "tcp", "udp", "icmpv6"),
    "VolumeType": ("partition", "disk", "tmpfs", "directory", "symlink", "overlay", "swap", "external"),
    "FilesystemType": ("none", "xfs", "vfat", "ext4", "iso9660", "swap", "virtiofs"),
    "EncryptionProviderType": ("none", "luks2"),
}
_PACKAGES = (
    (r"Kube(?!Span).*|KubeletConfig", "k8s"),
    (r".*Volume.*|Filesystem.*|LVM.*|ZswapConfig|RAID.*", "block"),
    (r"Registry.*|CRI.*|ImageCache.*|ImageVerification.*", "cri"),
    (r"ExtensionServiceConfig", "extensions"),
    (r"SideroLink.*", "siderolink"),
    (r"TrustedRoots.*|SecurityProfile.*", "security"),
    (r"PCIDriver.*", "hardware"),
    (r"Discovery.*", "cluster"),
    (r"(Kmsg|Event|Watchdog|OOM|Environment|Sysctl|Sysfs|KernelModule|Udev|EtcFile|UnattendedInstall).*", "runtime"),
    (r".*", "network"),
)
_STRUCTS = {"machine": "MachineConfig", "cluster": "ClusterConfig", "kubelet": "KubeletConfig", "install": "InstallConfig",
            "network": "NetworkConfig", "features": "FeaturesConfig", "kernel": "KernelConfig"}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One type: a struct, a map (`each` is its value), a list (`item`), or a scalar (`name`)."""

    name: str = "string"
    fields: dict[str, Shape] = field(default_factory=dict)
    each: Shape | None = None
    item: Shape | None = None
    required: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()


@cache
def _table() -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    parts: dict[str, str] = {}
    shapes: dict[tuple[str, str], str] = {}
    for line in (TABLES / "documents.txt").read_text(encoding="utf-8").splitlines():
        if " = " in line:
            name, body = line.split(" = ", 1)
            parts[name] = body
        elif line:
            kind, contract, body = line.split(" ", 2)
            shapes[kind, contract] = body
    return parts, shapes


def _expand(text: str) -> str:
    parts = _table()[0]
    while "&" in text:
        text = re.sub(r"&\d+", lambda match: parts[match[0]], text)
    return text


@cache
def shape(kind: str, contract: str) -> Shape | None:
    """The shape of a document kind under a contract (`1.13`, `1.14`), None if it is not registered."""
    shapes = _table()[1]
    body = shapes.get((kind, contract)) or shapes.get((kind, "*"))
    if body is None:
        return None
    tokens = re.findall(r"[{}\[\]]|:|!|=|[^\s{}\[\]:!=]+", _expand(body))
    parsed, _ = _parse(tokens, 0)
    return parsed


def _parse(tokens: list[str], at: int) -> tuple[Shape, int]:
    if tokens[at] == "[":
        if tokens[at + 1] == "]":
            return Shape("list", item=Shape()), at + 2
        item, at = _parse(tokens, at + 1)
        return Shape("list", item=item), at + 1
    if tokens[at] != "{":
        return Shape(tokens[at]), at + 1
    at += 1
    fields: dict[str, Shape] = {}
    marks: dict[str, set[str]] = {"!": set(), "=": set()}
    while tokens[at] != "}":
        key = tokens[at]
        at += 1
        while tokens[at] in marks:
            marks[tokens[at]].add(key)
            at += 1
        if tokens[at] == ":":
            fields[key] = Shape(tokens[at + 1])
            at += 2
        elif tokens[at] in "{[":
            fields[key], at = _parse(tokens, at)
        else:
            fields[key] = Shape()
    if list(fields) == ["*"]:
        return Shape("map", each=fields["*"]), at + 1
    return Shape("struct", fields=fields, required=frozenset(marks["!"]), replaced=frozenset(marks["="])), at + 1


def go_type(kind: str) -> str:
    """The Go type that a decoding error names."""
    if kind == "v1alpha1":
        return "*v1alpha1.Config"
    package = next(name for pattern, name in _PACKAGES if re.fullmatch(pattern, kind))
    return f"*{package}.{'ServiceConfig' if package == 'extensions' else kind}V1Alpha1"


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "!!map"
    if isinstance(node, yaml.SequenceNode):
        return "!!seq"
    value = goyaml.scalar(node)  # type: ignore[arg-type]
    kinds = {bool: "!!bool", int: "!!int", float: "!!float", type(None): "!!null"}
    text = node.value if len(node.value) <= 10 else node.value[:7] + "..."
    return f"{kinds.get(type(value), '!!str')} `{text}`"


class Decoder:
    """Turns nodes into plain data by shape and collects what does not fit, as Go's decoder words it."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def bad(self, node: yaml.Node, wanted: str) -> None:
        self.problems.append(f"line {node.start_mark.line + 1}: cannot construct {_shown(node)} into {wanted}")

    def decode(self, node: yaml.Node, shaped: Shape, key: str = "") -> Any:
        if isinstance(node, yaml.ScalarNode) and goyaml.scalar(node) is None and node.style in (None, ""):
            return None
        if shaped.name == "any":
            return goyaml.plain(node)
        if shaped.name in ("struct", "map"):
            if not isinstance(node, yaml.MappingNode):
                name = f"v1alpha1.{_STRUCTS[key]}" if key in _STRUCTS else "map[string]string"
                return self.bad(node, name if shaped.name == "struct" or shaped.each == Shape() else "map[string]any")
            return self._mapping(node, shaped)
        if shaped.item is not None:
            if not isinstance(node, yaml.SequenceNode):
                return self.bad(node, "[]string")
            return [self.decode(item, shaped.item, key) for item in node.value]
        return self._scalar(node, shaped.name)

    def _mapping(self, node: yaml.MappingNode, shaped: Shape) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.value in lines:
                line = key.start_mark.line + 1
                self.problems.append(f'line {line}: mapping key "{key.value}" already defined at line {lines[key.value]}')
                continue
            lines[key.value] = key.start_mark.line + 1
            inner = shaped.each or shaped.fields.get(key.value)
            if inner is not None:
                found[key.value] = self.decode(value, inner, key.value)
        return found

    def _scalar(self, node: yaml.Node, name: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            if name in ("PEMEncodedCertificateAndKey", "PEMEncodedCertificate", "PEMEncodedKey", "ClusterInlineManifests", "ArgValue"):
                return goyaml.plain(node)
            return self.bad(node, "string" if name not in _INTEGERS | {"bool", "int64"} else name)
        value = goyaml.scalar(node)
        if name == "bool":
            if node.style in (None, "") and node.value.lower() in ("y", "yes", "on", "n", "no", "off"):
                return node.value.lower() in ("y", "yes", "on")
            return value if isinstance(value, bool) else self.bad(node, "bool")
        if name in _INTEGERS:
            fits = isinstance(value, int) and not isinstance(value, bool) and (value >= 0 or not name.startswith("u"))
            return value if fits else self.bad(node, name)
        if name == "int64":
            return self._duration(node)
        problem = _text_problem(node.value, name)
        if problem:
            self.problems.append(f"line {node.start_mark.line + 1}: {problem}")
        return value if name == "PortRange" and isinstance(value, int) else node.value

    def _duration(self, node: yaml.ScalarNode) -> Any:
        match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", node.value)
        if not match or not node.value:
            return goyaml.scalar(node) if node.value.isdigit() else self.bad(node, "time.Duration")
        hours, minutes, seconds = (float(part or 0) for part in match.groups()[:3])
        total = hours * 3600 + minutes * 60 + seconds
        hours, rest = divmod(total, 3600)
        minutes, seconds = divmod(rest, 60)
        tail = f"{seconds:g}s"
        head = f"{hours:g}h{minutes:g}m" if hours else f"{minutes:g}m" if minutes else ""
        return goyaml.Raw(head + tail)


def _text_problem(text: str, name: str) -> str:
    if name in _ENUMS and text not in _ENUMS[name]:
        return f"{text} does not belong to {name} values"
    if name in ("URL", "Endpoint"):
        if text.startswith(":"):
            return f'parse "{text}": missing protocol scheme'
        if re.search(r"[\x00-\x1f\x7f]", text):
            return f'parse "{text}": net/url: invalid control character in URL'
        if re.match(r"[^/?#]*:", text) and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
            return f'parse "{text}": first path segment in URL cannot contain colon'
    try:
        if name == "Prefix" and text:
            if "/" not in text:
                return f'netip.ParsePrefix("{text}"): no \'/\''
            ipaddress.ip_interface(text)
        if name == "Addr" and text:
            ipaddress.ip_address(text)
    except ValueError:
        return f'netip.ParsePrefix("{text}"): invalid' if name == "Prefix" else f'ParseAddr("{text}"): unable to parse IP'
    return ""


def unknown(node: yaml.Node, shaped: Shape) -> Any:
    """The part of a node that its shape does not know, None if there is none."""
    if isinstance(node, yaml.MappingNode):
        if shaped.name not in ("struct", "map"):
            return None
        found: dict[str, Any] = {}
        for key, value in node.value:
            inner = shaped.each or shaped.fields.get(key.value)
            rest = value if inner is None else unknown(value, inner)
            if rest is not None:
                found[key.value] = rest
        return {key: found[key] for key in sorted(found, key=goyaml.natural)} or None
    if isinstance(node, yaml.SequenceNode) and shaped.item is not None:
        return [rest for item in node.value if (rest := unknown(item, shaped.item)) is not None] or None
    return None


def encoded(value: Any, shaped: Shape, key: str = "") -> Any:
    """Data in the order and with the omissions that Go's encoder gives a type."""
    if shaped.name == "struct" and isinstance(value, dict):
        result: dict[str, Any] = {}
        for name, inner in shaped.fields.items():
            item = value.get(name)
            if name in shaped.required:
                empty: Any = {"struct": {}, "map": {}, "list": [], "string": ""}.get(inner.name)
                result[name] = encoded(item, inner, name) if item is not None else empty
            elif item is not None and not (item in ("", []) or (item == {} and inner.name == "map")):
                result[name] = encoded(item, inner, name)
        return result
    if shaped.name == "map" and isinstance(value, dict):
        assert shaped.each is not None
        return {name: encoded(value[name], shaped.each, name) for name in sorted(value, key=goyaml.natural)}
    if shaped.item is not None and isinstance(value, list):
        return [encoded(item, shaped.item, key) for item in value]
    if shaped.name == "uint32" and key in ("permissions", "mode") and isinstance(value, int):
        return goyaml.Raw(f"0o{value:o}")
    if shaped.name == "PEMEncodedCertificateAndKey" and isinstance(value, dict):
        return {"crt": value.get("crt") or "", "key": value.get("key") or ""}
    return goyaml.ordered(value) if shaped.name == "any" else value


def merged(left: Any, right: Any, shaped: Shape, key: str = "") -> Any:
    """A patch laid over a value: maps and structs by key, lists appended, empty values ignored."""
    if right is None or (right == "" and left):
        return left
    if left is None:
        return right
    if isinstance(left, dict) and isinstance(right, dict):
        result = dict(left)
        for name, item in right.items():
            inner = shaped.each or shaped.fields.get(name) or Shape("any")
            replace = name in shaped.replaced
            result[name] = (item if item is not None else left.get(name)) if replace else merged(left.get(name), item, inner, name)
        return result
    if isinstance(left, list) and isinstance(right, list):
        match = {"admissionControl": ("name",), "interfaces": ("interface", "deviceSelector")}.get(key)
        return _matched(left, right, shaped, match) if match and shaped.item else left + right
    return right


def _matched(left: list[Any], right: list[Any], shaped: Shape, keys: tuple[str, ...]) -> list[Any]:
    result = list(left)
    assert shaped.item is not None
    for item in right:
        key = next((name for name in keys if item.get(name)), None)
        for index, old in enumerate(result):
            if key and old.get(key) == item[key]:
                result[index] = merged(old, item, shaped.item)
                break
        else:
            result.append(item)
    return result
