# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_cluster_info
short_description: Wait for the planned nodes in Kubernetes
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Waits until every planned node has joined under its name, with its architecture, and is Ready. In check mode it looks once.
extends_documentation_fragment: [motley.inference.state]
options:
  timeout:
    description: Seconds to wait.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Wait for the nodes
  motley.inference.talos_cluster_info:
  run_once: true
"""

RETURN = r"""
nodes:
  description: The nodes.
  type: list
  elements: dict
  returned: success
  sample:
    - {name: x86-01, arch: amd64, ready: true, reason: "", schedulable: true, kubelet: v1.36.1, system: Talos (v1.14.1), addresses: [10.0.0.20]}
"""
