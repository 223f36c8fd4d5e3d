# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Refuse what cannot work before anything is touched
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Checks the inventory (group, names and types of variables, addresses, secrets in the clear), the tools on the controller,
    and takes the run lock of the state directory.
  - With O(scope=reach) it asks whether every machine answers.
extends_documentation_fragment: [motley.inference.state]
options:
  scope:
    description: What to check.
    type: str
    choices: [inventory, reach]
    default: inventory
  options:
    description: Names (without the prefix C(motley_)) of options of single roles that the inventory may hold besides the public variables.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Check the inventory before anything is touched
  motley.inference.preflight:
"""

RETURN = r"""
nodes:
  description: Names of the nodes.
  type: list
  elements: str
  returned: success
  sample: [x86-01, spark-01]
tools:
  description: Tools that were found, with their versions.
  type: dict
  returned: success, with O(scope=inventory)
  sample: {talosctl: v1.14.1}
"""
