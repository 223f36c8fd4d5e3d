# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_bootstrap
short_description: Start etcd of a Talos cluster once
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Looks whether etcd is there, and starts it on the first control plane if it never was.
  - Refuses to start it anew on an installation where it was started before.
  - Works on the whole cluster, once.
extends_documentation_fragment: [motley.inference.state]
options:
  timeout:
    description: Seconds until the node has to take it.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Start etcd
  motley.inference.talos_bootstrap:
  run_once: true
"""

RETURN = r"""
node:
  description: The control plane.
  type: str
  returned: success
  sample: x86-01
"""
