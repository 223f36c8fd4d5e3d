# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Machine configurations: reading a stream of documents, patching it, writing it back, comparing two."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import yaml

from motley_lab.talos import goyaml, schema


class ConfigError(Exception):
    """A configuration or patch that is refused; the text is the real one."""


@dataclass
class Document:
    """One decoded document; the classic one has the kind ``v1alpha1`` and no name."""

    kind: str
    data: dict[str, Any]
    name: str = ""
    api: str = "v1alpha1"

    @property
    def identity(self) -> tuple[str, str]:
        return self.kind, self.name

    def text(self, contract: str) -> str:
        shaped = schema.shape(self.kind, contract)
        body = schema.encoded(self.data, shaped) if shaped else self.data
        if self.kind != "v1alpha1":
            body = {"apiVersion": self.api, "kind": self.kind, **body}
        return goyaml.dump(body)


@dataclass
class Deletion:
    """One ``$patch: delete``: the document it is in, the path, and how to find a list item."""

    kind: str
    name: str
    path: list[str]
    item: tuple[str, str] | None = None


@dataclass
class Config:
    """A stream of documents, the classic one first."""

    documents: list[Document] = field(default_factory=list)
    contract: str = "1.13"
    deletions: list[Deletion] = field(default_factory=list)

    @property
    def v1alpha1(self) -> dict[str, Any] | None:
        return next((document.data for document in self.documents if document.kind == "v1alpha1"), None)

    def find(self, kind: str, name: str | None = None) -> dict[str, Any] | None:
        """The data of the first document of a kind (and name)."""
        found = (d.data for d in self.documents if d.kind == kind and name in (None, d.name))
        return next(found, None)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [document.data for document in self.documents if document.kind == kind]

    def get(self, path: str) -> Any:
        """A value of the classic document by dotted path, None if any part is missing."""
        value: Any = self.v1alpha1
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self) -> str:
        ranked = sorted(self.documents, key=lambda document: document.kind != "v1alpha1")
        return "---\n".join(document.text(self.contract) for document in ranked)


def _field(node: yaml.MappingNode, key: str) -> str:
    return next((value.value for name, value in node.value if name.value == key and isinstance(value, yaml.ScalarNode)), "")


def load(text: str, *, contract: str = "1.13", patch: bool = False) -> Config:
    """Decode a stream strictly; an empty one is refused unless it is a patch that only deletes."""
    config = Config(contract=contract)
    seen: set[tuple[str, str, str]] = set()
    try:
        for node in goyaml.documents(text, flavour=contract):
            _load_one(node, config, seen, patch)
    except goyaml.YamlError as error:
        raise ConfigError(f"decode error: {error}") from None
    if not config.documents and not config.deletions:
        raise ConfigError("config not found")
    return config


def _load_one(node: yaml.Node, config: Config, seen: set[tuple[str, str, str]], patch: bool) -> None:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode) and goyaml.scalar(node) is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"expected a YAML document at line {line}")
    api, kind, name = _field(node, "apiVersion"), _field(node, "kind") or "v1alpha1", _field(node, "name")
    if patch:
        deletions = _deletions(node, kind, name)
        config.deletions += deletions
        if not node.value or {key.value for key, _ in node.value} <= {"version", "kind", "name"}:
            return
        if deletions and {key.value for key, _ in node.value} <= {"apiVersion", "version", "kind", "name"}:
            return
    if (api, kind, name) in seen:
        raise ConfigError(f"duplicate document {api}/{kind}/{name} is not allowed (line {line})")
    seen.add((api, kind, name))
    try:
        config.documents.append(_decoded(node, config.contract))
    except ConfigError as error:
        raise ConfigError(f"error decoding document {api}/{kind}/{name} (line {line}): {error}") from None


def _decoded(node: yaml.MappingNode, contract: str) -> Document:
    api, kind = _field(node, "apiVersion"), _field(node, "kind")
    if any(key.value in ("machine", "cluster", "debug", "persist") for key, _ in node.value) and not api:
        api = "v1alpha1"
    if not kind and api != "v1alpha1":
        raise ConfigError("missing kind")
    if not api:
        raise ConfigError("missing apiVersion")
    shaped = schema.shape(kind or "v1alpha1", contract) if api == "v1alpha1" else None
    if shaped is None or kind == "v1alpha1":
        raise ConfigError(f'"{kind}" "{api}": not registered')
    decoder = schema.Decoder()
    data = decoder.decode(node, shaped)
    if decoder.problems:
        lines = "".join(f"\n  {problem}" for problem in decoder.problems)
        raise ConfigError(f"error decoding {kind} to {schema.go_type(kind or 'v1alpha1')}: yaml: construct errors:{lines}")
    checked = node
    if kind:
        rest = [(key, value) for key, value in node.value if key.value not in ("apiVersion", "kind")]
        checked = yaml.MappingNode(node.tag, rest, node.start_mark, node.end_mark, flow_style=node.flow_style)
    left = schema.unknown(checked, shaped)
    if left is not None:
        raise ConfigError(f"unknown keys found during decoding:\n{goyaml.dump(left)}")
    return Document(kind or "v1alpha1", data, _field(node, "name") if kind else "", api)


def _deletions(node: yaml.MappingNode, kind: str, name: str) -> list[Deletion]:
    """Take every ``$patch: delete`` out of a patch document."""
    found: list[Deletion] = []

    def marked(value: yaml.Node) -> bool:
        return isinstance(value, yaml.MappingNode) and any(
            key.value == "$patch" and getattr(mark, "value", "") == "delete" for key, mark in value.value
        )

    def walk(value: yaml.Node, path: list[str]) -> bool:
        """True if the node is to go."""
        if marked(value):
            found.append(Deletion(kind, name if not path else "", path))
            return True
        if isinstance(value, yaml.MappingNode):
            value.value[:] = [(key, item) for key, item in value.value if not walk(item, [*path, key.value])]
            return not value.value and bool(found) and bool(path)
        if isinstance(value, yaml.SequenceNode):
            kept = []
            for item in value.value:
                if not marked(item):
                    kept.append(item)
                    continue
                pair = next(((k.value, v.value) for k, v in item.value if k.value != "$patch"), None)
                if pair is None:
                    where = "error processing patch delete statements at line 1: no key:val found in sequence node for path"
                    raise ConfigError(f"{where} {'.'.join(path)}")
                found.append(Deletion(kind, "", path, pair))
            gone = bool(value.value) and not kept
            value.value[:] = kept
            return gone
        return False

    if walk(node, []):
        node.value.clear()
    return found


def read_patch(source: str, *, contract: str = "1.13") -> Config | None:
    """A patch as the command line gives it (``@file``, file, inline); None for a JSON 6902 patch."""
    inline = "\n" in source or " " in source or source.startswith(("[", "{"))
    if source.startswith("@") or not inline:
        path = source.removeprefix("@")
        try:
            with open(path, encoding="utf-8") as file:
                source = file.read()
        except OSError as error:
            raise ConfigError(f"open {path}: {(error.strerror or '').lower()}") from None
    try:
        return load(source, contract=contract, patch=True)
    except ConfigError as refused:
        try:
            data = goyaml.load(source)
        except goyaml.YamlError:
            data = {}
        if data is None or (isinstance(data, list) and all(isinstance(item, dict) for item in data)):
            return None
        raise refused from None


def patched(config: Config, patches: list[Config | None]) -> Config:
    """The configuration with every patch laid over it, in order."""
    for patch in patches:
        if patch is None:
            if len(config.documents) != 1 or config.v1alpha1 is None:
                raise ConfigError("JSON6902 patches are not supported for multi-document machine configuration")
            raise ConfigError("JSON6902 patches are not simulated in the lab")
        documents = list(config.documents)
        for deletion in patch.deletions:
            documents = _delete(documents, deletion)
        for addition in patch.documents:
            shaped = schema.shape(addition.kind, config.contract)
            for index, document in enumerate(documents):
                if document.identity == addition.identity and shaped:
                    data = schema.merged(document.data, addition.data, shaped)
                    documents[index] = Document(document.kind, data, document.name, document.api)
                    break
            else:
                documents.append(addition)
        config = Config(documents, config.contract)
    return config


def _delete(documents: list[Document], deletion: Deletion) -> list[Document]:
    result = []
    for document in documents:
        if document.kind != deletion.kind or (deletion.name and document.name != deletion.name):
            result.append(document)
        elif deletion.path:
            result.append(Document(document.kind, _without(document.data, deletion), document.name, document.api))
        elif document.kind == "v1alpha1":
            raise ConfigError("patch delete: path '' in document 'v1alpha1/v1alpha1': can't delete the root of the legacy document")
    return result


def _without(data: dict[str, Any], deletion: Deletion) -> dict[str, Any]:
    def strip(value: Any, path: list[str]) -> Any:
        if not path:
            if deletion.item and isinstance(value, list):
                key, wanted = deletion.item
                index = next((i for i, item in enumerate(value) if str(item.get(key)) == wanted), None)
                return [item for i, item in enumerate(value) if i != index]
            return value
        if not isinstance(value, dict) or path[0] not in value:
            return value
        if len(path) == 1 and not deletion.item:
            return {key: item for key, item in value.items() if key != path[0]}
        return {**value, path[0]: strip(value[path[0]], path[1:])}

    return dict(strip(data, deletion.path))


def diff(before: str, after: str) -> str:
    """A unified diff as the server sends it, empty if nothing differs."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "a", "b", lineterm="", n=3))
    return "\n".join([*lines, ""]) if lines else ""
