# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Prove that the running service is the planned one
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Compares what runs with the plan. Which node and device holds which rank and which layers, how much the weights and the KV
    cache take, whether every device works during a probe, whether the traffic takes the chosen interface, which variables
    the processes see, health, API key, one real completion, image digests.
  - The best evidence decides. First the line that the stage reporter prints from inside each rank, then the engine's own log within its
    rounding, then Ray's list of actors. What has no evidence is "not seen", never "passed".
  - Works on the whole cluster; never C(changed). The proof is kept as C(verify.json) in the state directory.
extends_documentation_fragment: [motley.inference.state]
options:
  form:
    description:
      - V(full) looks at everything, V(quick) at placement, health and one completion.
      - V(auto) is V(quick) if the same job of the same plan has passed the full form before, and in check mode, else V(full).
    type: str
    choices: [auto, quick, full]
    default: auto
  probe_seconds:
    description: How long the service is made to work while devices and links are watched.
    type: float
    default: 3.0
"""

EXAMPLES = r"""
- name: Prove the service
  motley.inference.verify:
    form: full
  run_once: true
"""

RETURN = r"""
form:
  description: Which form was used; V(none) in check mode when nothing runs yet.
  type: str
  returned: success
  sample: full
passed:
  description: Whether nothing failed and everything essential was seen.
  type: bool
  returned: success
  sample: true
checks:
  description: Each check with what was expected and seen.
  type: list
  elements: dict
  returned: success
  sample:
    - id: rank-0
      node: x86-01
      passed: true
      expected: stage 0 on x86-01
      seen: stage 0 on x86-01
      evidence: stage reporter, process 311 on cuda:0
      remedy: ""
"""
