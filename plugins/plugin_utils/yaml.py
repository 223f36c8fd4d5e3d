# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML for people: objects as several documents, keys in the order in which they were put, long text as blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

try:
    import yaml

    class _Dumper(yaml.SafeDumper):
        """Without aliases: a person who reads a manifest should not have to follow anchors."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the library's signature)
            return True

    def _text(dumper: yaml.SafeDumper, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    _Dumper.add_representer(str, _text)
    IMPORT_ERROR: ImportError | None = None
except ImportError as error:
    IMPORT_ERROR = error


def dump(documents: Iterable[Any]) -> str:
    """Documents, each after a line of three hyphens."""
    if IMPORT_ERROR is not None:
        hint = "pip install pyyaml, for the Python that runs ansible-playbook"
        raise MotleyError(f"the Python library for YAML is missing: {IMPORT_ERROR}", hint=hint)
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=140, explicit_start=True, allow_unicode=True))
