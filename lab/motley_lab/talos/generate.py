# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""New secrets, and machine configurations of both contracts made from them and `tables/machine.yaml.tmpl`."""

from __future__ import annotations

import base64
import json
import secrets as random
import string
from typing import Any

from motley_lab.talos import config as configs
from motley_lab.talos import goyaml, schema

VANILLA = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"


def _token() -> str:
    return ".".join("".join(random.choice(string.ascii_lowercase + string.digits) for _ in range(size)) for size in (6, 16))


def secrets_bundle() -> dict[str, Any]:
    """A new secrets bundle, as `gen secrets` writes it."""
    from motley_lab.talos import pki

    names = {"etcd": ("etcd", "ec"), "k8s": ("kubernetes", "ec"), "k8saggregator": ("", "ec"), "os": ("talos", "ed25519")}
    certs = {key: pki.authority(name, kind).encoded for key, (name, kind) in names.items()}
    return {
        "cluster": {"id": base64.urlsafe_b64encode(random.token_bytes(32)).decode(), "secret": base64.b64encode(random.token_bytes(32)).decode()},
        "secrets": {"bootstraptoken": _token(), "secretboxencryptionsecret": base64.b64encode(random.token_bytes(32)).decode()},
        "trustdinfo": {"token": _token()},
        "certs": {**certs, "k8sserviceaccount": {"key": pki.b64(pki.rsa_key())}},
    }


def talosconfig(name: str, bundle: dict[str, Any]) -> str:
    """A client configuration with an administrator's certificate of one year and no endpoints."""
    from motley_lab.talos import pki

    client = pki.issue(pki.Pair.decoded(bundle["certs"]["os"]), organizations=["os:admin"])
    context = {"endpoints": [], "ca": bundle["certs"]["os"]["crt"], **client.encoded}
    return goyaml.dump({"context": name, "contexts": {name: context}})


def machine_config(role: str, name: str, endpoint: str, bundle: dict[str, Any], *, contract: str, options: dict[str, Any]) -> configs.Config:
    """The configuration of a role (`controlplane`, `worker`) under a contract."""
    control, certs = role == "controlplane", bundle["certs"]

    def unb64(text: str) -> str:
        return base64.b64decode(text).decode()

    def ca(key: str) -> dict[str, str]:
        return certs[key] if control else {"crt": certs[key]["crt"], "key": ""}

    kube = {key: unb64(certs["k8s"][key]) for key in ("crt", "key")}
    pem = f"issuingCA: {json.dumps({'cert': kube['crt'], 'key': kube['key']})}" if control else f"acceptedCAs: {json.dumps([kube['crt']])}"
    sans = list(options.get("additional-sans") or []) if control else []
    values: dict[str, Any] = {
        "role": role, "name": name, "endpoint": endpoint, "token": bundle["trustdinfo"]["token"], "os_ca": ca("os"), "k8s_ca": ca("k8s"),
        "etcd_ca": ca("etcd"), "aggregator_ca": ca("k8saggregator"), "machine_sans": sans, "api_sans": sans, "domain": options["dns-domain"],
        "disk": options["install-disk"], "image": options["install-image"], "selector": f'disk.dev_path == "{options["install-disk"]}"',
        "cluster_id": bundle["cluster"]["id"], "cluster_secret": bundle["cluster"]["secret"],
        "bootstrap_token": bundle["secrets"]["bootstraptoken"], "secretbox": bundle["secrets"]["secretboxencryptionsecret"],
        "service_account": certs["k8sserviceaccount"]["key"], "service_account_pem": unb64(certs["k8sserviceaccount"]["key"]),
        "aggregator_crt": unb64(certs["k8saggregator"]["crt"]), "aggregator_key": unb64(certs["k8saggregator"]["key"]),
    }  # fmt: skip
    words = {key: json.dumps(value) for key, value in values.items()} | {"kubernetes": options["kubernetes-version"], "k8s_pem": pem}
    config = configs.load(_section(contract, "both", words), contract=contract)
    if control:
        config = configs.patched(config, [configs.load(_section(contract, role, words), contract=contract)])
    return configs.patched(config, [configs.load(extra, contract=contract, patch=True) for extra in _extras(contract, options)])


def _section(contract: str, role: str, words: dict[str, str]) -> str:
    text = (schema.TABLES / "machine.yaml.tmpl").read_text(encoding="utf-8")
    body = text.split(f"## {contract} {role}\n")[1].split("\n## ")[0] + "\n"
    return string.Template(body).substitute(words)


def _extras(contract: str, options: dict[str, Any]) -> list[str]:
    """Patches for the flags that add or take away something."""
    found = []
    if not options["with-cluster-discovery"]:
        document = "{apiVersion: v1alpha1, kind: DiscoveryServiceConfig, name: default, $patch: delete}"
        found.append("cluster: {discovery: {enabled: false}}" if contract == "1.13" else document)
    if options.get("with-kubespan"):
        document = "{apiVersion: v1alpha1, kind: KubeSpanConfig, enabled: true}"
        found.append("machine: {network: {kubespan: {enabled: true}}}" if contract == "1.13" else document)
    for registry in options.get("registry-mirror") or []:
        host, _, url = registry.partition("=")
        classic = {"machine": {"registries": {"mirrors": {host: {"endpoints": [url]}}}}}
        document_ = {"apiVersion": "v1alpha1", "kind": "RegistryMirrorConfig", "name": host, "endpoints": [{"url": url}]}
        found.append(json.dumps(classic if contract == "1.13" else document_))
    return found
