# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_kubeconfig
short_description: Fetch the kubeconfig of a Talos cluster
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Puts the kubeconfig into the state directory, mode 0600, when there is none or when the API refuses the one that is there. No other
    file is touched.
extends_documentation_fragment: [motley.inference.state]
options:
  timeout:
    description: Seconds until the node has to give it.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Fetch the kubeconfig
  motley.inference.talos_kubeconfig:
  run_once: true
"""

RETURN = r"""
kubeconfig:
  description: Where it is.
  type: str
  returned: success
  sample: /home/me/cluster/.motley/home/kubeconfig
"""
