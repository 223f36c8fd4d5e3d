# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ray_cluster
short_description: Have Ray on the planned nodes
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Makes the namespace with its three Pod Security labels, the configuration, the Secrets, and one Pod per planned node (launcher
    V(ray), workload V(pod)).
  - Each Pod offers Ray exactly the GPUs that the plan uses there, so that a placement can not pack stages onto one node.
  - A Pod can not be changed; if one has to be made anew, all are, for a Ray head and its workers belong together. Check mode says so.
  - Waits until every node is alive in Ray with its GPUs. Takes Ray down again if it answers without its token.
  - With C(motley_rebuild) the Pods are taken down and made anew, and the command for what has to follow is printed.
extends_documentation_fragment: [motley.inference.state]
options:
  files:
    description: Folder with the files that the containers get.
    type: path
    required: true
  timeout:
    description: Seconds to wait for Ray.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Have Ray as planned
  motley.inference.ray_cluster:
    files: "{{ role_path }}/files"
  run_once: true
"""

RETURN = r"""
nodes:
  description: Address, GPUs in Ray and Pod of each planned node.
  type: dict
  returned: success
  sample: {x86-01: {address: 10.0.0.20, gpus: 2, pod: ray-head}}
rebuilt:
  description: Whether running Pods were replaced, which ends the engine.
  type: bool
  returned: success
  sample: false
go_on:
  description: The command that has to follow, empty if none has to.
  type: str
  returned: success
  sample: ansible-playbook motley.inference.site -i inventories/lab --tags vllm_serve,verify
objects:
  description: What became of each object, or would.
  type: list
  elements: dict
  returned: success
  sample: [{kind: Pod, namespace: motley, name: ray-head, action: created}]
"""
