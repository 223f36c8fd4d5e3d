# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write one self-contained page about plan, proof and figures
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Writes C(report.html) into the state directory from what the other steps recorded. The split as a picture, the plan and what lost against it,
    the proof, the benchmark, how to use the endpoint, and versions. The page asks for nothing from the network.
  - Prints where the service is and how to ask it. The same records give the same bytes; never C(changed).
extends_documentation_fragment: [motley.inference.state]
"""

EXAMPLES = r"""
- name: Write the report
  motley.inference.report:
  run_once: true
"""

RETURN = r"""
path:
  description: Where the page is.
  type: str
  returned: success
  sample: /home/me/cluster/.motley/home/report.html
written:
  description: Whether the page differs from the one that was there.
  type: bool
  returned: success
  sample: true
url:
  description: Address of the endpoint.
  type: str
  returned: success
  sample: http://10.0.0.20:8000
"""
