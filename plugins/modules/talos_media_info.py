# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_media_info
short_description: Print the boot medium of each node and what to do at the machine before
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Registers the schematics of all nodes and prints for each its ISO and SecureBoot ISO with the steps at its console. No machine has to answer.
extends_documentation_fragment: [motley.inference.state]
"""

EXAMPLES = r"""
- name: Print what to write to USB sticks
  motley.inference.talos_media_info:
  run_once: true
"""

RETURN = r"""
media:
  description: ISO, SecureBoot ISO and steps by node.
  type: dict
  returned: success
  sample:
    spark-01:
      iso: https://factory.talos.dev/image/bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad/v1.14.1/metal-arm64.iso
      secureboot_iso: https://factory.talos.dev/image/bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad/v1.14.1/metal-arm64-secureboot.iso
      steps: [Boot it.]
"""
