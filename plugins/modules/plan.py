# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Work out which node holds which layers
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Searches every pipeline size, tensor size, engine node, order of devices and layer partition that vLLM can run, and returns the best plan with
    the alternatives and why they lost.
  - Without O(request) it plans the inventory's cluster and records the plan in the state directory, where all later steps read it.
  - With O(request) it answers that request and writes nothing.
  - Fetches config.json of a model that is not in the planner's table from the hub, never weights.
extends_documentation_fragment: [motley.inference.state]
options:
  request:
    description:
      - What to plan. Keys are C(model), C(config), C(quantization), C(dtype), C(revision), C(nodes), C(links), C(workload), C(engine), C(objective).
      - A given C(engine.partition) is evaluated, not replaced.
    type: dict
  hub_url:
    description: Address of the model hub; C(HF_ENDPOINT) of C(motley_engine_env) or of the environment if unset, else C(https://huggingface.co).
    type: str
"""

EXAMPLES = r"""
- name: Plan the cluster of this inventory
  motley.inference.plan:
  run_once: true

- name: Ask what one split would do
  motley.inference.plan:
    request:
      model: meta-llama/Llama-3.1-70B-Instruct
      quantization: fp8
      nodes:
        - {name: x86-01, address: 10.0.0.20, devices: [rtx4090, rtx4090], engine: true}
        - {name: spark-01, address: 10.0.0.10, devices: [gb10]}
      engine: {partition: "22,20,38"}
  register: answer
"""

RETURN = r"""
plan:
  description: The plan; C(feasible) says whether there is one, C(explanation) is text for a person.
  type: dict
  returned: success
  sample: {schema: 1, feasible: true, pipeline: 3, tensor: 1, layer_partition: "22,20,38", kv_tokens: 11776}
"""
