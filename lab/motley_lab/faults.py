# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that can be switched on in a running lab, for the whole lab or for one node.

An active fault is a small file, so every process of the lab sees it at once and a restart keeps it. A component asks
`active(lab_dir, "name", node)` at the moment at which the fault matters and gets the fault's settings, or None.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

# name -> where it acts, what it does. A component that causes a fault adds its row; a name that is not here is refused.
FAULTS: dict[str, str] = {
    "image-amd64-only": "registry: the vLLM images have amd64 only (`--set image=NAME` narrows it to one)",
    "image-attestation-only": "registry: beside one architecture the image lists only attestation entries",
    "image-without-ray": "registry: the vLLM images hold no Ray (the labels of it are missing)",
    "registry-down": "registry: every request is answered 503",
    "factory-down": "factory: every request is answered 503",
    "factory-slow": "factory: the first installer pull of a schematic takes `--set seconds=N` (default 5)",
    "extension-missing": "factory: the release does not offer the extension `--set extension=siderolabs/...`",
    "hub-down": "hub: every request is answered 503",
    "hub-gated": "hub: the model needs a token (401 without one, 403 with `--set token=T` set and another one sent)",
    "slow-boot": "talos: a boot takes `--set seconds=N` (default 30) longer",
    "install-fails": "talos: an install or upgrade ends with an error (`--set text=...` is what it says)",
    "upgrade-falls-back": "talos: the new system does not boot, so the node comes up with the old one",
    "etcd-unhealthy": "talos: the etcd service of a control plane is not healthy",
}


class UnknownFault(ValueError):
    """A fault that the lab does not know, with the nearest names."""

    def __init__(self, name: str) -> None:
        near = difflib.get_close_matches(name, FAULTS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`motley-lab fault list` shows all"
        super().__init__(f"no fault named {name!r}: {hint}")


def _folder(lab_dir: str | os.PathLike[str]) -> Path:
    return Path(lab_dir) / "faults"


def _file(lab_dir: str | os.PathLike[str], name: str, node: str | None) -> Path:
    return _folder(lab_dir) / (f"{name}@{node}.json" if node else f"{name}.json")


def active(lab_dir: str | os.PathLike[str], name: str, node: str | None = None) -> dict[str, Any] | None:
    """The settings of a fault if it is on for the whole lab or for this node, else None."""
    for file in (_file(lab_dir, name, None), _file(lab_dir, name, node)):
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
    return None


def add(lab_dir: str | os.PathLike[str], name: str, *, node: str | None = None, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Switch a fault on; switching it on again replaces its settings."""
    if name not in FAULTS:
        raise UnknownFault(name)
    fault: dict[str, Any] = {**(settings or {}), "name": name, **({"node": node} if node else {})}
    _folder(lab_dir).mkdir(parents=True, exist_ok=True)
    file = _file(lab_dir, name, node)
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(fault), encoding="utf-8")
    fresh.replace(file)  # a reader never sees half a file
    return fault


def remove(lab_dir: str | os.PathLike[str], name: str, *, node: str | None = None) -> bool:
    """Switch a fault off; without a node wherever it is on. True if it was on."""
    if name not in FAULTS:
        raise UnknownFault(name)
    files = [_file(lab_dir, name, node)] if node else [_file(lab_dir, name, None), *_folder(lab_dir).glob(f"{name}@*.json")]
    found = [file for file in files if file.exists()]
    for file in found:
        file.unlink(missing_ok=True)
    return bool(found)


def listed(lab_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All active faults, by name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(_folder(lab_dir).glob("*.json"))]
