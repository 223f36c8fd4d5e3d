# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scripts that run inside containers by `python3 -c`: standard library only, JSON on standard output, secrets from files."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path


def source(name: str) -> str:
    """A script of this folder without comments, docstring and blank lines: it travels in the address of a request."""
    text = (Path(__file__).parent / f"{name}.py").read_text()
    kept: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and not token.line[: token.start[1]].strip() and token.string.startswith('"""')
        if token.type != tokenize.COMMENT and not docstring:
            kept.append(token)
    lines = tokenize.untokenize(kept).replace("\\\n", "\n").splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"
