# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_image_check
short_description: Compare the image that a Talos node runs with the one that was planned
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Compares release, architecture, schematic, extension names, driver version of kernel modules and userland, loaded modules and
    C(/proc/cmdline) with lock.yml.
  - With O(moment=before) a node of another release or schematic is reported for an upgrade instead of failing.
extends_documentation_fragment: [motley.inference.state]
options:
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  moment:
    description: Before an upgrade was considered, or after everything was done.
    type: str
    choices: [before, after]
    default: after
  timeout:
    description: Seconds to wait for the kernel modules after a boot, with O(moment=after).
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Prove the image of this node
  motley.inference.talos_image_check:
"""

RETURN = r"""
state:
  description: What the node is.
  type: str
  returned: success
  sample: configured
upgrade:
  description: Whether it needs another image.
  type: bool
  returned: success
  sample: false
reasons:
  description: What differs.
  type: list
  elements: str
  returned: success
  sample: []
checks:
  description: Each comparison.
  type: list
  elements: dict
  returned: success
  sample: [{id: version, passed: true, expected: v1.14.1, seen: v1.14.1, remedy: ""}]
"""
