# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_upgrade
short_description: Give a running Talos node another image
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Upgrades when release or schematic differ from lock.yml, and does nothing otherwise.
  - Takes an etcd snapshot before a control plane, cordons and empties the node if something runs there, and lets pods back in any case.
  - A node where something runs is only rebooted with O(allow_reboot=true). Releases go one minor at a time. GB10 nodes are power-cycled.
  - A run that was killed is gone on with. A node that comes back with its old image fails with that reason.
  - In check mode it only compares.
extends_documentation_fragment: [motley.inference.state]
options:
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  role:
    description: Skip a node that has another role, so that workers and control planes have their turns.
    type: str
    choices: [any, worker, controlplane]
    default: any
  allow_reboot:
    description: Reboot the node although something runs there; C(motley_allow_reboot) if unset.
    type: bool
  timeout:
    description: Seconds for the upgrade and the reboot.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Upgrade this node if it needs it
  motley.inference.talos_upgrade:
"""

RETURN = r"""
state:
  description: What the node is.
  type: str
  returned: success
  sample: configured
reasons:
  description: What differed.
  type: list
  elements: str
  returned: success
  sample: ["Talos v1.13.9, wanted v1.14.1"]
"""
