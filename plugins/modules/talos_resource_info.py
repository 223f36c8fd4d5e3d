# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_resource_info
short_description: Read any resource of a Talos node
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Returns the objects that C(talosctl get) prints. Secrets inside them are replaced.
  - With O(address) it needs no inventory.
extends_documentation_fragment: [motley.inference.state]
options:
  resource:
    description: Resource type, such as C(links) or C(machinestatus).
    type: str
    required: true
  id:
    description: One object of it.
    type: str
  namespace:
    description: Resource namespace.
    type: str
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  address:
    description: Address of a node, instead of one of the inventory.
    type: str
  talosconfig:
    description: Credentials, with O(address).
    type: path
  talosctl:
    description: talosctl to call, with O(address).
    type: str
    default: talosctl
  insecure:
    description: Ask a node in maintenance mode; found out if unset.
    type: bool
"""

EXAMPLES = r"""
- name: Read the links of this node
  motley.inference.talos_resource_info:
    resource: links
"""

RETURN = r"""
resources:
  description: The objects.
  type: list
  elements: dict
  returned: success
  sample: [{metadata: {id: enP7s7, type: LinkStatuses.net.talos.dev}, node: 10.0.0.10, spec: {operationalState: up}}]
"""
