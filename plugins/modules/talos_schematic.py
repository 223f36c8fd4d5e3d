# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_schematic
short_description: Register the Image Factory schematic of a Talos node
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Works out what a node's image holds (NVIDIA extensions of one branch, kernel arguments) from its accelerators and the Talos release,
    and registers it.
  - Compares every extension name with the factory's list for the release first, for registering checks none, and the factory's ID with
    the one computed here.
  - Refuses known-broken combinations of accelerator, release and driver with the reason; O(accept) takes one by its id.
  - Without O(talos_version) and O(accelerators) it is the schematic of a node of the inventory, and goes into lock.yml. In check mode
    nothing is registered.
extends_documentation_fragment: [motley.inference.state]
options:
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  talos_version:
    description: Talos release.
    type: str
  accelerators:
    description: The node's accelerators, by their names in the accelerator table.
    type: list
    elements: str
  arch:
    description: Architecture of a node without accelerators.
    type: str
    choices: [amd64, arm64]
  flavour:
    description: Kernel module flavour; the one that suits the accelerators if unset.
    type: str
    choices: [open, nonfree]
  branch:
    description: Driver branch, lts if unset.
    type: str
    choices: [lts, production]
  kernel_args:
    description: More kernel arguments.
    type: list
    elements: str
  extensions:
    description: More official extensions, by their full names.
    type: list
    elements: str
  overlay:
    description: Overlay of a single board computer.
    type: dict
  secureboot:
    description: Use the SecureBoot installer.
    type: bool
  accept:
    description: Ids of known-broken combinations to accept.
    type: list
    elements: str
  factory_url:
    description: Image Factory, C(https://factory.talos.dev) if unset.
    type: str
  register:
    description: Register it; else only compute and compare it.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Register the schematic of this node
  motley.inference.talos_schematic:

- name: Compute a schematic without an inventory
  motley.inference.talos_schematic:
    talos_version: v1.14.1
    accelerators: [gb10]
    register: false
"""

RETURN = r"""
schematic:
  description: Schematic ID.
  type: str
  returned: success
  sample: bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad
yaml:
  description: The schematic as the factory hashes it.
  type: str
  returned: success
  sample: "customization: {}\n"
installer:
  description: Reference of the installer image.
  type: str
  returned: success
  sample: factory.talos.dev/metal-installer/bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad:v1.14.1
iso:
  description: Address of the ISO for the node's architecture.
  type: str
  returned: success
  sample: https://factory.talos.dev/image/bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad/v1.14.1/metal-arm64.iso
extensions:
  description: Version of each extension as the factory offers it.
  type: dict
  returned: success
  sample: {siderolabs/nonfree-kmod-nvidia-lts: 580.178.04-v1.14.1}
kernel_args:
  description: Kernel arguments of the image.
  type: list
  elements: str
  returned: success
  sample: [arm64.nobti]
driver:
  description: NVIDIA driver version; empty without one.
  type: str
  returned: success
  sample: 580.178.04
architecture:
  description: Architecture of the node.
  type: str
  returned: success
  sample: arm64
notes:
  description: What is known about this combination, where it is no proven one.
  type: list
  elements: str
  returned: success
  sample: []
"""
