# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_serve
short_description: Run the engine as planned and wait until its API answers
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Submits one Ray job with a known name (launcher V(ray)). A job of an older plan is stopped first; a running one that is as planned stays.
  - Before a start it looks at free memory per device, available memory on unified ones, the interface and the port, and refuses with what would fit.
  - Waits with the phase that the engine is in, until health and the list of models answer with the API key; on failure names the first real error.
  - Has the Service C(motley-endpoint), which follows the engine node.
  - With C(motley_rebuild) the job is stopped and started anew.
extends_documentation_fragment: [motley.inference.state]
options:
  timeout:
    description: Seconds to wait for the API. The first start downloads the model.
    type: int
    default: 3600
  check_memory:
    description: Look at memory, interface and port before a start.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Serve as planned
  motley.inference.vllm_serve:
  run_once: true
"""

RETURN = r"""
url:
  description: Address of the endpoint.
  type: str
  returned: success
  sample: http://10.0.0.20:8000
job:
  description: Submission id of the engine's job in Ray.
  type: str
  returned: success
  sample: motley-0123456789ab-1
model:
  description: The model that is served.
  type: str
  returned: success
  sample: Qwen/Qwen2.5-72B-Instruct-AWQ
seconds:
  description: How long the API took to answer.
  type: float
  returned: success
  sample: 94.5
go_on:
  description: The command that has to follow, empty if none has to.
  type: str
  returned: success
  sample: ansible-playbook motley.inference.site -i inventories/lab --tags verify
objects:
  description: What became of each object, or would.
  type: list
  elements: dict
  returned: success
  sample: [{kind: Service, namespace: motley, name: motley-endpoint, action: unchanged}]
"""
