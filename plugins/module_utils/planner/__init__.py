# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner: from a request (plain data) to the plan (plain data). See `request.py` for the shapes."""

from __future__ import annotations

from ansible_collections.motley.inference.plugins.module_utils.planner.request import digest, plan

__all__ = ["digest", "plan"]
