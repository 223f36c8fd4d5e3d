# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of Kubernetes objects, applied or taken away, and awaited."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import objects
from ansible_collections.motley.inference.plugins.plugin_utils import serving
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Change, Kube, apply_all, delete_all, wait_all

KUBE_ARGUMENTS: dict[str, Any] = {"kubeconfig": {"type": "path"}}


class ActionModule(MotleyAction):
    """One task for a whole list: server-side apply under our name, strict about fields."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        **KUBE_ARGUMENTS,
        "definitions": {"type": "list", "elements": "dict", "required": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "namespace": {"type": "str"},
        "force_conflicts": {"type": "bool", "default": False},
        "recreate": {"type": "bool", "default": True},
        "wait": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 300},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        definitions, namespace = args["definitions"], args["namespace"] or ""
        wanted = [objects.identity(d, namespace=namespace) for d in definitions]
        for definition in definitions:
            context.hide(*objects.secret_texts(definition))
        kube = _client(args, context)
        if kube is None:
            changes = [Change(who, "deleted" if args["state"] == "absent" else "created") for who in wanted]
        elif args["state"] == "absent":
            changes = delete_all(kube, [objects.identity(d, namespace=namespace) for d in objects.ordered(definitions, removal=True)],
                                 dry_run=context.check_mode, timeout=args["timeout"])
        else:
            changes = apply_all(kube, definitions, namespace=namespace, dry_run=context.check_mode, force=args["force_conflicts"],
                                recreate=args["recreate"], timeout=args["timeout"])
            if args["wait"] and not context.check_mode:
                wait_all(kube, wanted, timeout=args["timeout"], context=context)
        if kube is not None:
            serving.pass_on_warnings(context, kube)
        return {"changed": any(c.changed for c in changes), "objects": serving.summary(context, changes), "diff": serving.diff_of(changes)}


def _client(args: dict[str, Any], context: Context) -> Kube | None:
    if not args["kubeconfig"] and context.variable("motley_model"):
        return serving.client(context)
    path = Path(args["kubeconfig"]) if args["kubeconfig"] else context.state.root / "kubeconfig"
    if context.check_mode and not path.exists():
        context.display(f"  note: no kubeconfig yet ({path}); nothing was compared with a cluster")
        return None
    if not path.exists():
        raise MotleyError(f"there is no kubeconfig at {path}", hint="give the option kubeconfig, or run --tags talos_bootstrap")
    return Kube(path)
