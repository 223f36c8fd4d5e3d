# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception that Motley raises on purpose."""

from __future__ import annotations


class MotleyError(Exception):
    """Something failed that a person can act on.

    message: what failed and where, one sentence. hint: what to do next. node: the node it happened on, if it was one.
    evidence: lines (already free of secrets) that show it.
    """

    def __init__(self, message: str, *, hint: str = "", node: str | None = None, evidence: tuple[str, ...] | list[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node
        self.evidence = tuple(evidence)

    def text(self) -> str:
        """The whole of it for a terminal: node, message, evidence, hint."""
        lines = [f"{self.node}: {self.message}" if self.node else self.message]
        lines += [f"    {line}" for line in self.evidence]
        if self.hint:
            lines.append(f"What to do: {self.hint}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Plain data for the `failure` key of a result."""
        return {"message": self.message, "hint": self.hint, "node": self.node, "evidence": list(self.evidence)}
