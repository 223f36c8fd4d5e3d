# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""New secrets, and machine configurations of both contracts made from them."""

from __future__ import annotations

import base64
import datetime
import secrets as random
from typing import Any

from motley_lab.talos import goyaml
from motley_lab.talos.config import Config, Document

VANILLA = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
KUBERNETES = {"1.13": "1.36.3", "1.14": "1.37.0-rc.0"}
TAGS = {"1.13": "v1.13.9", "1.14": "v1.14.1"}
POD_SECURITY = {
    "apiVersion": "pod-security.admission.config.k8s.io/v1alpha1",
    "kind": "PodSecurityConfiguration",
    "defaults": {"enforce": "baseline", "enforce-version": "latest", "audit": "restricted", "audit-version": "latest",
                 "warn": "restricted", "warn-version": "latest"},
    "exemptions": {"usernames": [], "runtimeClasses": [], "namespaces": ["kube-system"]},
}  # fmt: skip
AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


def _token(head: int, tail: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return ".".join("".join(random.choice(letters) for _ in range(size)) for size in (head, tail))


def _random(size: int, *, url: bool = False) -> str:
    data = random.token_bytes(size)
    return (base64.urlsafe_b64encode(data) if url else base64.b64encode(data)).decode()


def secrets_bundle() -> dict[str, Any]:
    """A new secrets bundle, as `gen secrets` writes it."""
    from motley_lab.talos import pki

    return {
        "cluster": {"id": _random(32, url=True), "secret": _random(32)},
        "secrets": {"bootstraptoken": _token(6, 16), "secretboxencryptionsecret": _random(32)},
        "trustdinfo": {"token": _token(6, 16)},
        "certs": {
            "etcd": pki.authority("etcd").encoded,
            "k8s": pki.authority("kubernetes").encoded,
            "k8saggregator": pki.authority("", common_name="front-proxy").encoded,
            "k8sserviceaccount": {"key": pki.b64(pki.rsa_key())},
            "os": pki.authority("talos", kind="ed25519").encoded,
        },
    }


def talosconfig(name: str, bundle: dict[str, Any]) -> str:
    """A client configuration with an administrator's certificate of one year and no endpoints."""
    from motley_lab.talos import pki

    ca = pki.Pair.decoded(bundle["certs"]["os"])
    client = pki.issue(ca, organizations=["os:admin"])
    context = {"endpoints": [], "ca": bundle["certs"]["os"]["crt"], **client.encoded}
    return goyaml.dump({"context": name, "contexts": {name: context}})


def machine_config(role: str, name: str, endpoint: str, bundle: dict[str, Any], *, contract: str, options: dict[str, Any]) -> Config:
    """The configuration of a role (`controlplane`, `worker`) under a contract."""
    if contract == "1.13":
        documents = _classic(role, name, endpoint, bundle, options)
    else:
        documents = _documents(role, name, endpoint, bundle, options)
    for registry in options.get("registry-mirror") or []:
        host, _, url = registry.partition("=")
        if contract == "1.13":
            mirrors = documents[0].data["machine"].setdefault("registries", {}).setdefault("mirrors", {})
            mirrors[host] = {"endpoints": [url]}
        else:
            documents.append(Document("RegistryMirrorConfig", {"name": host, "endpoints": [{"url": url}]}, host))
    return Config(documents, contract)


def _ca(bundle: dict[str, Any], name: str, *, control: bool) -> dict[str, str]:
    return dict(bundle["certs"][name]) if control else {"crt": bundle["certs"][name]["crt"], "key": ""}


def _classic(role: str, name: str, endpoint: str, bundle: dict[str, Any], options: dict[str, Any]) -> list[Document]:
    control = role == "controlplane"
    kubernetes = options["kubernetes-version"]
    install = {"disk": options["install-disk"], "image": options["install-image"], "wipe": False, "grubUseUKICmdline": True}
    features: dict[str, Any] = {
        "diskQuotaSupport": True,
        "kubePrism": {"enabled": True, "port": 7445},
        "hostDNS": {"enabled": True, "forwardKubeDNSToHost": True},
    }
    machine: dict[str, Any] = {
        "type": role, "token": bundle["trustdinfo"]["token"], "ca": _ca(bundle, "os", control=control),
        "certSANs": list(options.get("additional-sans") or []) if control else [],
        "kubelet": {"image": f"ghcr.io/siderolabs/kubelet:v{kubernetes}", "defaultRuntimeSeccompProfileEnabled": True,
                    "disableManifestsDirectory": True},
        "install": install, "features": features,
    }  # fmt: skip
    discovery = {"enabled": True, "registries": {"kubernetes": {"disabled": True}, "service": {}}}
    cluster: dict[str, Any] = {
        "id": bundle["cluster"]["id"], "secret": bundle["cluster"]["secret"], "controlPlane": {"endpoint": endpoint},
        "clusterName": name, "token": bundle["secrets"]["bootstraptoken"], "ca": _ca(bundle, "k8s", control=control),
        "network": {"dnsDomain": options["dns-domain"], "podSubnets": ["10.244.0.0/16"], "serviceSubnets": ["10.96.0.0/12"]},
        "discovery": discovery if options["with-cluster-discovery"] else {"enabled": False},
    }  # fmt: skip
    if options.get("with-kubespan"):
        machine["network"] = {"kubespan": {"enabled": True}}
    if control:
        machine["nodeLabels"] = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
        images = {part: f"registry.k8s.io/kube-{part}:v{kubernetes}" for part in ("apiserver", "controller-manager", "proxy", "scheduler")}
        cluster |= {
            "secretboxEncryptionSecret": bundle["secrets"]["secretboxencryptionsecret"],
            "aggregatorCA": _ca(bundle, "k8saggregator", control=True),
            "serviceAccount": {"key": bundle["certs"]["k8sserviceaccount"]["key"]},
            "apiServer": {"image": images["apiserver"], "auditPolicy": AUDIT,
                          "certSANs": list(options.get("additional-sans") or []),
                          "admissionControl": [{"name": "PodSecurity", "configuration": POD_SECURITY}]},
            "controllerManager": {"image": images["controller-manager"]},
            "proxy": {"image": images["proxy"]},
            "scheduler": {"image": images["scheduler"]},
            "etcd": {"ca": _ca(bundle, "etcd", control=True)},
        }  # fmt: skip
    data = {"version": "v1alpha1", "debug": False, "persist": True, "machine": machine, "cluster": cluster}
    return [Document("v1alpha1", data), Document("HostnameConfig", {"auto": "stable"})]


def _documents(role: str, name: str, endpoint: str, bundle: dict[str, Any], options: dict[str, Any]) -> list[Document]:
    from motley_lab.talos import pki

    control = role == "controlplane"
    sans = list(options.get("additional-sans") or []) if control else []
    machine = {"type": role, "token": bundle["trustdinfo"]["token"], "ca": _ca(bundle, "os", control=control), "certSANs": sans,
               "features": {"diskQuotaSupport": True}}  # fmt: skip
    cluster: dict[str, Any] = {"token": bundle["secrets"]["bootstraptoken"]}
    if control:
        cluster["etcd"] = {"ca": _ca(bundle, "etcd", control=True)}
    data = {"version": "v1alpha1", "debug": False, "persist": True, "machine": machine, "cluster": cluster}
    kubernetes = options["kubernetes-version"]
    kube = pki.Pair.decoded(bundle["certs"]["k8s"])
    node: dict[str, Any] = {"nodeIP": {}}
    if control:
        node["labels"] = {"node-role.kubernetes.io/control-plane": "",
                          "node.kubernetes.io/exclude-from-external-load-balancers": ""}  # fmt: skip
        node["taints"] = {"node-role.kubernetes.io/control-plane": "NoSchedule"}
    selector = {"match": f'disk.dev_path == "{options["install-disk"]}"'}
    identity = {"clusterID": bundle["cluster"]["id"], "clusterSecret": bundle["cluster"]["secret"]}
    rows: list[tuple[str, dict[str, Any]]] = []
    if options["with-cluster-discovery"]:
        rows.append(("DiscoveryServiceConfig", {"name": "default", "endpoint": "https://discovery.talos.dev/"}))
    rows += [
        ("DiscoveryIdentityConfig", identity),
        ("UnattendedInstallConfig", {"installer": {"image": options["install-image"]},
                                     "provisioning": {"diskSelector": selector, "wipe": False}}),
        ("ResolverConfig", {"hostDNS": {"enabled": True, "forwardKubeDNSToHost": True}}),
        ("VolumeConfig", {"name": "EPHEMERAL", "mount": {"secure": True}}),
        ("FilesystemTrimConfig", {"interval": goyaml.Raw("168h0m0s")}),
        ("SecurityProfileConfig", {"workloadIsolation": True}),
        ("HostnameConfig", {"auto": "stable"}),
        ("KubeClusterConfig", {"clusterName": name, "endpoint": endpoint}),
        ("KubeNodeConfig", node),
        ("KubeletConfig", {"image": f"ghcr.io/siderolabs/kubelet:v{kubernetes}", "config": {},
                           "defaultRuntimeSeccompProfileEnabled": True}),
        ("KubeNetworkConfig", {"dnsDomain": options["dns-domain"], "podSubnets": ["10.244.0.0/16"],
                               "serviceSubnets": ["10.96.0.0/12"]}),
        ("KubeAPIServerCAConfig", {"issuingCA": {"cert": kube.crt, "key": kube.key}} if control else {"acceptedCAs": [kube.crt]}),
        ("KubePrismConfig", {"port": 7445}),
    ]  # fmt: skip
    if control:
        rows += _control_documents(endpoint, bundle, kubernetes, sans)
    documents = [Document(kind, value, str(value.get("name", ""))) for kind, value in rows]
    return [Document("v1alpha1", data), *documents]


def _control_documents(endpoint: str, bundle: dict[str, Any], kubernetes: str, sans: list[str]) -> list[tuple[str, dict[str, Any]]]:
    from motley_lab.talos import pki

    aggregator = pki.Pair.decoded(bundle["certs"]["k8saggregator"])
    image = f"registry.k8s.io/kube-{{}}:v{kubernetes}"
    keys = [{"name": "key2", "secret": bundle["secrets"]["secretboxencryptionsecret"]}]
    encryption = {"resources": [{"resources": ["secrets"], "providers": [{"secretbox": {"keys": keys}}]}]}
    anonymous = {"enabled": True, "conditions": [{"path": path} for path in ("/livez", "/readyz", "/healthz")]}
    return [
        ("KubeAggregatorCAConfig", {"issuingCA": {"cert": aggregator.crt, "key": aggregator.key}}),
        ("KubeAdmissionControlConfig", {"name": "PodSecurity", "configuration": POD_SECURITY}),
        ("KubeAuditPolicyConfig", {"configuration": AUDIT}),
        ("KubeAuthenticationConfig", {"configuration": {"anonymous": anonymous, "jwt": []}}),
        ("KubeAuthorizerConfig", {"name": "node", "type": "Node"}),
        ("KubeAuthorizerConfig", {"name": "rbac", "type": "RBAC"}),
        ("KubeEtcdEncryptionConfig", {"config": encryption}),
        ("KubeServiceAccountConfig", {"issuer": {"privateKey": pki.unb64(bundle["certs"]["k8sserviceaccount"]["key"]),
                                                 "issuerURL": endpoint}}),
        ("KubeAPIServerConfig", {"image": image.format("apiserver"), "certExtraSANs": sans}),
        ("KubeControllerManagerConfig", {"image": image.format("controller-manager")}),
        ("KubeSchedulerConfig", {"image": image.format("scheduler"), "config": {}}),
        ("KubeProxyConfig", {"image": image.format("proxy"), "config": {}}),
        ("KubeFlannelCNIConfig", {"backendType": "vxlan", "backendPort": 4789}),
        ("KubeCoreDNSConfig", {"enabled": True}),
    ]  # fmt: skip


def expiry(end: datetime.datetime) -> tuple[str, str]:
    """How long a certificate still holds, in the words of `config info`, and the day of its end."""
    left = (end - datetime.datetime.now(datetime.UTC)).total_seconds()
    words, past = "from now" if left > 0 else "ago", abs(left)
    for unit, size in (("year", 31104000), ("month", 2592000), ("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60)):
        if past >= size:
            count = int(past // size)
            return f"{count} {unit}{'s' if count > 1 else ''} {words}", f"{end:%Y-%m-%d}"
    return f"{int(past)} seconds {words}", f"{end:%Y-%m-%d}"
