# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_machine_config
short_description: Configure a Talos node
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Generates the whole machine configuration from the secrets and the inventory by the contract of the Talos release, validates it,
    compares it and applies it.
  - C(changed) is what the node's own dry run says. The diff has no secrets; a copy without secrets is kept under C(rendered/) in the state directory.
  - In maintenance mode it installs and waits for the first boot. A disk that holds something is refused unless C(motley_install_wipe) is
    true for that host.
  - Patches in C(motley_talos_patches) are checked before; kernel arguments, extensions and the like are refused with what to write instead.
  - In check mode nothing is applied, and nodes that do not answer are noted.
extends_documentation_fragment: [motley.inference.state]
options:
  node:
    description: Name of the node in C(motley_nodes); this host if unset.
    type: str
  timeout:
    description: Seconds for the installation or the reboot.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Configure this node
  motley.inference.talos_machine_config:
"""

RETURN = r"""
state:
  description: What the node was.
  type: str
  returned: success
  sample: maintenance
applied:
  description: Whether the configuration was sent.
  type: bool
  returned: success
  sample: true
check:
  description: Whether the image of this node is still to be proven.
  type: bool
  returned: success
  sample: true
reboot:
  description: Whether the change took a reboot.
  type: bool
  returned: when a running node changed
  sample: false
"""
