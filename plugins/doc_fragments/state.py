# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The option that every action has."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: State directory; C(motley_state_dir) if unset, else C(.motley/CLUSTER) beside the inventory.
    type: path
"""
