# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Image references: `registry/repository:tag@digest` taken apart and put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")

DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Reference:
    """One image reference, complete: the registry is always named, a tag or a digest is always there."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What selects the manifest in the registry API: the digest wins over the tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        text = self.name
        if self.tag:
            text += f":{self.tag}"
        return f"{text}@{self.digest}" if self.digest else text

    def pinned(self, digest: str) -> Reference:
        """The same image by digest; the tag stays for people to read."""
        return replace(self, digest=digest)


def parse(text: str) -> Reference:
    """Take a reference apart as container runtimes do (`vllm/vllm-openai` is on Docker Hub)."""
    wanted = text.strip()
    rest, dummy, digest = wanted.partition("@")
    registry, repository = _split_registry(rest)
    tag: str | None = None
    if ":" in repository:
        repository, dummy, tag = repository.partition(":")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    problem = _problem(registry, repository, tag, digest if "@" in wanted else None)
    if problem:
        raise MotleyError(f"image reference {wanted!r}: {problem}", hint="write it as registry/repository:tag or registry/repository@sha256:...")
    return Reference(registry, repository, tag or (None if digest else "latest"), digest or None)


def _split_registry(rest: str) -> tuple[str, str]:
    first, slash, remainder = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first.startswith("[")):
        return (DOCKER_HUB if first in ("index.docker.io", "registry-1.docker.io") else first), remainder
    return DOCKER_HUB, rest


def _problem(registry: str, repository: str, tag: str | None, digest: str | None) -> str:
    if not _HOST.fullmatch(registry):
        return f"{registry!r} is no registry host"
    if not _REPOSITORY.fullmatch(repository):
        return f"{repository!r} is no repository name (lower-case letters, digits, '.', '_', '-', '/')"
    if tag is not None and not _TAG.fullmatch(tag):
        return f"{tag!r} is no tag"
    if digest is not None and not _DIGEST.fullmatch(digest):
        return f"{digest!r} is no digest (sha256: and 64 hexadecimal digits)"
    return ""
