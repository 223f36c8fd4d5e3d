# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_image
short_description: Check that images have every needed architecture, and pin them by digest
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Reads indexes, manifests and configs by the registry API, without pulling a layer and without a container runtime.
  - Attestation entries of an index are no platforms; for a plain manifest the architecture of its config counts.
  - Without O(images) it looks at the engine's and the device plugin's image of the inventory, for every architecture of its nodes, and pins them in
    C(lock.yml). An image that is in the lock file is not asked for again until O(refresh).
  - Refuses an engine image without Ray where C(motley_launcher) is V(ray), and one whose vLLM is not the planned one.
extends_documentation_fragment: [motley.inference.state]
options:
  images:
    description: References to look at instead of the inventory's.
    type: list
    elements: str
  architectures:
    description: Architectures that each of O(images) must have.
    type: list
    elements: str
  mirrors:
    description: Registry name to mirror URL; C(motley_registry_mirrors) if unset.
    type: dict
  auth_file:
    description: Registry credentials, a file as C(docker login) writes it.
    type: path
  ca_file:
    description: Certificates of private registries.
    type: path
  refresh:
    description: Ask the registry again for images that are in the lock file.
    type: bool
    default: false
  timeout:
    description: Seconds for one answer of a registry.
    type: int
    default: 20
"""

EXAMPLES = r"""
- name: See whether an image runs on both kinds of machines
  motley.inference.container_image:
    images: [docker.io/vllm/vllm-openai:v0.17.1]
    architectures: [amd64, arm64]
  register: images
"""

RETURN = r"""
images:
  description: By reference, what the registry says of it.
  type: dict
  returned: success
  sample: {"docker.io/vllm/vllm-openai:v0.17.1": {digest: "sha256:29f77807", architectures: [amd64, arm64], ray: true}}
"""
