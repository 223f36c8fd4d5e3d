# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_objects
short_description: Apply or take away a list of Kubernetes objects
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Applies a list in one task, by server-side apply under the field manager C(motley), with strict field validation. A misspelt field is an error.
  - Sorts the list so that what others need comes first (namespaces, RuntimeClasses, configuration), and the other way round for taking away.
  - An object that can not take a change (a RuntimeClass's handler, a DaemonSet's selector, most of a Pod) is deleted and made anew;
    check mode says so.
  - In check mode every request is a dry run. Differences leave out what the server adds, and the values of Secrets.
extends_documentation_fragment: [motley.inference.state]
options:
  definitions:
    description: Objects, each with C(apiVersion), C(kind) and C(metadata.name).
    type: list
    elements: dict
    required: true
  state:
    description: Whether the objects shall be there.
    type: str
    choices: [present, absent]
    default: present
  namespace:
    description: Namespace of definitions that name none.
    type: str
  kubeconfig:
    description: Kubeconfig to use; C(motley_kubeconfig), else the state directory's, if unset.
    type: path
  force_conflicts:
    description: Take over fields that another program manages.
    type: bool
    default: false
  recreate:
    description: Delete and create anew what can not be changed; else it is an error.
    type: bool
    default: true
  wait:
    description: Wait until every object has reached what its kind is for (a Pod ready, a DaemonSet rolled out, a Job complete).
    type: bool
    default: false
  timeout:
    description: Seconds to wait.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Have a namespace and a setting in it
  motley.inference.kube_objects:
    kubeconfig: ~/.kube/config
    definitions:
      - apiVersion: v1
        kind: Namespace
        metadata: {name: demo}
      - apiVersion: v1
        kind: ConfigMap
        metadata: {name: settings, namespace: demo}
        data: {greeting: hello}
  run_once: true
"""

RETURN = r"""
objects:
  description: What became of each object, or would.
  type: list
  elements: dict
  returned: success
  sample: [{kind: ConfigMap, namespace: demo, name: settings, action: created}]
"""
