# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: talos_secrets
short_description: Make the secrets bundle and the talosconfig of a Talos cluster once
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Makes C(secrets.yaml) and C(talosconfig) (with endpoints) in the state directory, mode 0600, when they are missing. Values never
    appear in results.
  - Refuses to make new secrets while a node runs with other ones.
extends_documentation_fragment: [motley.inference.state]
"""

EXAMPLES = r"""
- name: Make the secrets of this cluster
  motley.inference.talos_secrets:
  run_once: true
"""

RETURN = r"""
made:
  description: Files that were missing.
  type: list
  elements: str
  returned: success
  sample: [secrets.yaml, talosconfig]
"""
