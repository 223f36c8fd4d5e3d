# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_device_plugin
short_description: Offer the GPUs of all nodes to Kubernetes, and make a CUDA call on each
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Has the namespace, the RuntimeClass C(nvidia) and the NVIDIA device plugin, pinned, and waits until every node offers the GPUs of the inventory.
  - Refuses releases of the device plugin that can not register a GB10.
  - Makes a real CUDA call on every node with the engine's image. The result is kept and used again until image, boot, driver or number
    of cards change.
extends_documentation_fragment: [motley.inference.state]
options:
  timeout:
    description: Seconds to wait for GPUs, and for the CUDA call. The first pull of an engine image takes minutes.
    type: int
    default: 1800
  handler:
    description: Name of the NVIDIA runtime in the nodes' container runtime. Another one means that the RuntimeClass is made anew.
    type: str
    default: nvidia
  cuda_check:
    description: Make the CUDA call.
    type: bool
    default: true
  cuda_megabytes:
    description: Memory to allocate and write on each device.
    type: int
    default: 16
"""

EXAMPLES = r"""
- name: Offer and prove the GPUs
  motley.inference.gpu_device_plugin:
  run_once: true
"""

RETURN = r"""
gpus:
  description: GPUs that each node offers.
  type: dict
  returned: success
  sample: {x86-01: 2, spark-01: 1}
cuda:
  description: What the CUDA call saw on each node.
  type: dict
  returned: success
  sample: {spark-01: {ok: true, count: 1, driver: 13000, devices: [{name: NVIDIA GB10, capability: "12.1"}]}}
objects:
  description: What became of each object, or would.
  type: list
  elements: dict
  returned: success
  sample: [{kind: RuntimeClass, namespace: "", name: nvidia, action: unchanged}]
"""
