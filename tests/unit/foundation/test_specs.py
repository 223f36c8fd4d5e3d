"""What is written twice must agree: action and stub, role defaults and spec, tasks and the options they use, inventory and docs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "ansible_collections.motley.inference.plugins"
ACTIONS = sorted(p.stem for p in (ROOT / "plugins" / "action").glob("[a-z]*.py"))
ROLES = sorted(p.name for p in (ROOT / "roles").iterdir() if (p / "tasks" / "main.yml").exists())
FIELDS = ("type", "elements", "default", "choices", "required", "no_log")


def spec_of(action: str) -> dict[str, Any]:
    module = importlib.import_module(f"{PACKAGE}.action.{action}")
    base = importlib.import_module(f"{PACKAGE}.plugin_utils.action")
    return {**base.STATE_ARGUMENTS, **module.ActionModule.ARGUMENTS}


def documented(action: str) -> dict[str, Any]:
    stub = importlib.import_module(f"{PACKAGE}.modules.{action}")
    document = yaml.safe_load(stub.DOCUMENTATION)
    options: dict[str, Any] = {}
    for name in document.get("extends_documentation_fragment", []):
        fragment = importlib.import_module(f"{PACKAGE}.doc_fragments.{name.split('.')[-1]}")
        options.update(yaml.safe_load(fragment.ModuleDocFragment.DOCUMENTATION).get("options") or {})
    return {**options, **(document.get("options") or {})}


def fields(option: dict[str, Any]) -> dict[str, Any]:
    chosen = {k: option[k] for k in FIELDS if option.get(k) not in (None, False)}
    return {k: list(v) if isinstance(v, (list, tuple)) else v for k, v in chosen.items() if k != "type" or v != "str"}


def compare(spec: dict[str, Any], docs: dict[str, Any], where: str) -> None:
    assert sorted(spec) == sorted(docs), where
    for name, option in spec.items():
        mine, theirs = fields(option), fields(docs[name])
        mine.pop("no_log", None), theirs.pop("no_log", None)
        assert mine == theirs, f"{where}.{name}"
        if "options" in option:
            compare(option["options"], docs[name].get("suboptions") or docs[name].get("options") or {}, f"{where}.{name}")


@pytest.mark.parametrize("action", ACTIONS)
def test_action_and_stub_have_the_same_options(action):
    compare(spec_of(action), documented(action), action)


@pytest.mark.parametrize("action", ACTIONS)
def test_stub_is_complete(action):
    stub = importlib.import_module(f"{PACKAGE}.modules.{action}")
    document = yaml.safe_load(stub.DOCUMENTATION)
    assert document["module"] == action
    assert document["short_description"] and document["description"]
    examples = yaml.safe_load(stub.EXAMPLES)
    assert any(f"motley.inference.{action}" in task for play in examples for task in (play.get("tasks") or [play])), "no example uses it by its full name"
    for name, value in (yaml.safe_load(stub.RETURN) or {}).items():
        assert "description" in value and "type" in value and "sample" in value, name


@pytest.mark.parametrize("action", ACTIONS)
def test_action_is_in_the_action_group(action):
    assert action in yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["action_groups"]["motley"]


@pytest.mark.parametrize("role", ROLES)
def test_role_spec_and_defaults_agree(role):
    spec = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
    defaults_file = ROOT / "roles" / role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(defaults_file.read_text()) or {}) if defaults_file.exists() else {}
    options = spec.get("options") or {}
    assert spec["short_description"] and spec["description"]
    assert set(defaults) <= set(options), "a default without an option"
    for name, value in defaults.items():
        assert options[name].get("default") == value, name
    assert all(not option.get("required") for option in options.values()), "a required option breaks --tags"


def tasks_of(node: Any) -> list[dict[str, Any]]:
    """Every task of a document, also inside blocks and plays."""
    if isinstance(node, list):
        return [t for item in node for t in tasks_of(item)]
    if not isinstance(node, dict):
        return []
    inner = [t for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always") for t in tasks_of(node.get(key))]
    return [node, *inner]


FILES = sorted(p for pattern in ("roles/*/tasks/*.yml", "roles/*/handlers/*.yml", "playbooks/*.yml", "examples/**/*.yml") for p in ROOT.glob(pattern))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_tasks_use_options_that_exist(path):
    for task in tasks_of(yaml.safe_load(path.read_text())):
        for key, value in task.items():
            if not isinstance(key, str):
                continue
            if key.startswith("motley.inference.") and key.split(".")[2] in ACTIONS:
                unknown = set(value or {}) - set(spec_of(key.split(".")[2]))
                assert not unknown, f"{key}: {unknown}"
            elif key.startswith("motley.inference."):
                raise AssertionError(f"{key} is no action of this collection")


@pytest.mark.parametrize("role", ROLES)
def test_role_tasks_carry_the_tag_of_the_role(role):
    for task in yaml.safe_load((ROOT / "roles" / role / "tasks" / "main.yml").read_text()):
        assert role in (task.get("tags") or []), task.get("name")
