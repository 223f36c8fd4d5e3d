# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m motley_lab` is `motley-lab`."""

from __future__ import annotations

import sys

from motley_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
