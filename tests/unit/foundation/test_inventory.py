from __future__ import annotations

import copy

import pytest
from ansible_collections.motley.inference.plugins.module_utils import inventory
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError

GROUPS = {"motley_nodes": ["x86-01", "spark-01"], "motley_controlplane": ["x86-01"], "motley_workers": ["spark-01"]}


def test_the_readme_inventory_is_good(home):
    assert inventory.problems(home, GROUPS) == []


@pytest.mark.parametrize(("host", "change", "text"), [
    ("x86-01", {"motley_acelerators": ["rtx4090"]}, "did you mean motley_accelerators?"),
    ("spark-01", {"motley_modle": "x"}, "did you mean motley_model?"),
    ("x86-01", {"motley_engine_args": "--dtype float32"}, "motley_engine_args must be of type list, not str"),
    ("x86-01", {"motley_max_model_len": -1}, "must be above 0"),
    ("x86-01", {"motley_max_model_len": True}, "must be a number"),
    ("x86-01", {"motley_platform": "talso"}, "not one of talos, k3s"),
    ("x86-01", {"ansible_host": "x86.home"}, "is no IP address"),
    ("x86-01", {"ansible_host": "10.0.0.10"}, "have the same address 10.0.0.10"),
    ("x86-01", {"motley_accelerators": None}, "motley_accelerators is not set"),
    ("x86-01", {"motley_model": "other"}, "motley_model differs between hosts"),
    ("x86-01", {"motley_talos_version": "1.14"}, "not of the form v1.14.1"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_each_mistake_is_named(home, host, change, text):
    home[host].update(change)
    assert any(text in problem for problem in inventory.problems(home, GROUPS)), inventory.problems(home, GROUPS)


@pytest.mark.parametrize(("change", "text"), [
    ({"motley_layers": {"spark-1": 25, "x86-01": 3}}, "names spark-1, which is no node; did you mean spark-01?"),
    ({"motley_engine_node": "gpu"}, "motley_engine_node is 'gpu'"),
    ({"motley_model": None}, "motley_model is not set"),
    ({"motley_talos_version": None}, "motley_talos_version is not set"),
])
def test_cluster_wide_mistakes(home, change, text):
    for values in home.values():
        values.update(change)
    assert any(text in problem for problem in inventory.problems(home, GROUPS))


def test_two_control_planes_are_refused(home):
    assert any("two control planes" in p for p in inventory.problems(home, {**GROUPS, "motley_controlplane": ["x86-01", "spark-01"]}))


def test_an_upper_case_host_name_is_refused(home):
    home["X86_1"] = home.pop("x86-01")
    assert any("RFC 1123" in p for p in inventory.problems(home, {"motley_nodes": list(home)}))


def test_no_nodes():
    assert "no group motley_nodes" in inventory.problems({}, {})[0]
    with pytest.raises(MotleyError, match="motley_nodes"):
        inventory.cluster({}, {})


def test_cluster_is_normalised(home):
    cluster = inventory.cluster(home, GROUPS)
    x86, spark = cluster["nodes"]
    assert (x86["role"], spark["role"]) == ("controlplane", "worker")
    assert (x86["arch"], spark["arch"]) == ("amd64", "arm64")
    assert x86["devices"] == [{"accelerator": "rtx4090"}, {"accelerator": "rtx4090"}]
    assert cluster["engine"]["port"] == 8000
    assert cluster["talos"]["factory_url"] == "https://factory.talos.dev"


def test_control_plane_defaults_to_the_first_node(home):
    assert [n["role"] for n in inventory.cluster(home, {"motley_nodes": list(home)})["nodes"]] == ["controlplane", "worker"]


def test_text_from_the_command_line_is_typed(home):
    for values in home.values():
        values.update(motley_rebuild="true", motley_max_model_len="4096", motley_gpu_memory_utilization="0.8")
    assert inventory.problems(home, GROUPS) == []
    cluster = inventory.cluster(home, GROUPS)
    assert cluster["rebuild"] is True
    assert cluster["model"]["max_model_len"] == 4096
    assert cluster["engine"]["gpu_memory_utilization"] == 0.8


@pytest.mark.parametrize(("change", "names"), [
    ({}, []),
    ({"motley_model": "other/model"}, ["motley_model"]),
    ({"motley_engine_args": ["--dtype", "float32"]}, ["engine options"]),
    ({"motley_install_wipe": True, "motley_hf_token_file": "/x", "motley_rebuild": True}, []),
    ({"motley_image": "other:1"}, []),
    ({"motley_concurrency": 2}, ["motley_concurrency"]),
])
def test_what_makes_a_plan_stale(home, change, names):
    plan = {"inputs": inventory.inputs(inventory.cluster(copy.deepcopy(home), GROUPS))}
    for values in home.values():
        values.update(change)
    assert inventory.changed_since(plan, inventory.cluster(home, GROUPS)) == names


def test_request_carries_what_the_planner_needs(home):
    home["x86-01"]["motley_devices"] = [{"memory_gib": 0.05, "backend": "cpu"}]
    for values in home.values():
        values.update(motley_engine_args=["--dtype=float32", "--max-num-batched-tokens", "2048"], motley_engine_node="x86-01",
                      motley_layers={"spark-01": 25, "x86-01": 3})
    request = inventory.plan_request(inventory.cluster(home, GROUPS), config={"num_hidden_layers": 28})
    assert request["dtype"] == "float32"
    assert request["engine"]["max_num_batched_tokens"] == 2048
    assert request["engine"]["backend"] == "cpu"
    assert request["engine"]["partition_by_node"] == {"spark-01": 25, "x86-01": 3}
    assert request["nodes"][0]["engine"] is True
    assert request["nodes"][0]["devices"] == [{"accelerator": "rtx4090", "memory_gib": 0.05}, {"accelerator": "rtx4090"}]
    assert request["config"] == {"num_hidden_layers": 28}


@pytest.mark.parametrize(("raw", "found"), [
    ({"motley_hf_token": "hf_abcdefghijklmnopqrstuv"}, ["motley_hf_token"]),
    ({"motley_hf_token": "short"}, ["motley_hf_token"]),
    ({"motley_hf_token": "{{ lookup('ansible.builtin.env', 'HF_TOKEN') }}"}, []),
    ({"motley_hf_token_file": "/root/token"}, []),
    ({"motley_engine_env": {"HF_TOKEN": "abc"}}, ["motley_engine_env.HF_TOKEN"]),
    ({"motley_engine_env": {"HF_ENDPOINT": "http://x"}}, []),
    ({"motley_engine_args": ["--api-key", "abc"]}, ["motley_engine_args (--api-key)"]),
    ({"motley_engine_args": ["--api-key=abc"]}, ["motley_engine_args (--api-key)"]),
    ({"motley_talos_patches": [{"x": "-----BEGIN EC PRIVATE KEY-----"}]}, ["motley_talos_patches"]),
])
def test_secrets_in_the_clear_are_found(raw, found):
    assert inventory.literal_secrets(raw) == found


def test_a_digest_does_not_depend_on_the_order_of_names():
    assert inventory.digest({"a": 1, "b": {"c": 2, "d": 3}}) == inventory.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert inventory.digest({"a": [1, 2]}) != inventory.digest({"a": [2, 1]})


def test_default_state_directory():
    assert inventory.state_dir("home", "/etc/clusters", "/tmp") == "/etc/clusters/.motley/home"
    for directory in (None, "/tmp/run-1/inventory"):
        with pytest.raises(MotleyError) as error:
            inventory.state_dir("home", directory, "/tmp")
        assert "motley_state_dir" in error.value.hint


def test_every_variable_has_a_text():
    assert all(v.text.endswith(".") and v.type in ("str", "path", "int", "float", "bool", "list", "dict") for v in inventory.VARIABLES)
    assert len({v.name for v in inventory.VARIABLES}) == len(inventory.VARIABLES)
