# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_interface
short_description: Find the network interface between nodes on one node
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Reads links, addresses and routes of the node and takes the physical link, bond, bridge or VLAN that is up and owns the node's inter-node address.
  - Refuses with the candidates, and why the others fell out, where none or several fit. An interface that the inventory names is checked as well.
  - Records the choice in C(nodes.json), for NCCL, Gloo and the engine.
extends_documentation_fragment: [motley.inference.state]
options:
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  interface:
    description: Interface to check instead of finding one; C(motley_interface) if unset.
    type: str
"""

EXAMPLES = r"""
- name: Find the interface of this node
  motley.inference.nccl_interface:
"""

RETURN = r"""
interface:
  description: The link that was chosen; null in check mode where the node can not be asked.
  type: dict
  returned: success
  sample: {name: enP7s7, address: 10.0.0.10, kind: physical, speed_mbit: 10000, mtu: 1500, driver: r8169, rdma: null}
rejected:
  description: The other links, and why they were not chosen.
  type: dict
  returned: success
  sample: {enP2p1s0f1np1: down, lo: loopback, flannel.1: container network}
"""
