# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and certificates of a cluster: machine CA (Ed25519), Kubernetes CAs (P-256), what they sign."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from motley_lab.talos.transport import unb64

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    crt: str
    key: str

    @property
    def encoded(self) -> dict[str, str]:
        """The form of a configuration: each PEM text in one line of base64."""
        return {"crt": b64(self.crt), "key": b64(self.key)}

    @classmethod
    def decoded(cls, value: dict[str, str]) -> Pair:
        return cls(unb64(value.get("crt") or ""), unb64(value.get("key") or ""))


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _pem(key: CertificateIssuerPrivateKeyTypes, kind: str) -> str:
    traditional = serialization.PrivateFormat.PKCS8 if kind == "ed25519" else serialization.PrivateFormat.TraditionalOpenSSL
    body = key.private_bytes(serialization.Encoding.PEM, traditional, serialization.NoEncryption()).decode()
    return body.replace("PRIVATE KEY", "ED25519 PRIVATE KEY") if kind == "ed25519" else body


def load_key(pem: str) -> CertificateIssuerPrivateKeyTypes:
    """A private key; Talos labels Ed25519 keys in its own way."""
    plain = pem.replace("ED25519 PRIVATE KEY", "PRIVATE KEY").encode()
    return serialization.load_pem_private_key(plain, None)  # type: ignore[return-value]


def _new_key(kind: str) -> CertificateIssuerPrivateKeyTypes:
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def _algorithm(key: CertificateIssuerPrivateKeyTypes) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def rsa_key() -> str:
    """The key that signs service account tokens."""
    return _pem(rsa.generate_private_key(public_exponent=65537, key_size=2048), "rsa")


def authority(organization: str, kind: str) -> Pair:
    """A self-signed CA of ten years; without an organization it is the front proxy's."""
    key = _new_key(kind)
    attribute = (NameOID.ORGANIZATION_NAME, organization) if organization else (NameOID.COMMON_NAME, "front-proxy")
    name = x509.Name([x509.NameAttribute(*attribute)])
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    builder = _builder(name, name, key, 3650)
    builder = builder.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    return Pair(_text(builder.sign(key, _algorithm(key))), _pem(key, kind))


def _builder(subject: x509.Name, issuer: x509.Name, key: CertificateIssuerPrivateKeyTypes, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - DAY / 24).not_valid_after(now + DAY * days)


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def issue(
    ca: Pair | None, *, common_name: str = "", organizations: Iterable[str] = (), names: Iterable[str] = (), days: float = 365
) -> Pair:
    """A leaf certificate; a server one where names are given, self-signed where no CA is."""
    signer = load_key(ca.key) if ca else None
    kind = "ed25519" if ca is None or isinstance(signer, ed25519.Ed25519PrivateKey) else "ec"
    key = _new_key(kind)
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    if common_name:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    subject = x509.Name(attributes)
    issuer = x509.load_pem_x509_certificate(ca.crt.encode()).subject if ca else subject
    builder = _builder(subject, issuer, key, days)
    listed = list(names)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if listed else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), True)
    if ca and signer is not None:
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    if listed:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(name) for name in dict.fromkeys(listed)]), False)
    signing = signer if signer is not None else key
    return Pair(_text(builder.sign(signing, _algorithm(signing))), _pem(key, kind))


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def remaining(end: datetime.datetime) -> tuple[str, str]:
    """How long a certificate still holds, in the words of `config info`, and the day of its end."""
    left = (end - datetime.datetime.now(datetime.UTC)).total_seconds()
    units = (("year", 31104000), ("month", 2592000), ("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
    unit, size = next((row for row in units if abs(left) >= row[1]), units[-1])
    count = int(abs(left) // size)
    return f"{count} {unit}{'s' if count != 1 else ''} {'from now' if left > 0 else 'ago'}", f"{end:%Y-%m-%d}"


def facts(pem: str) -> tuple[list[str], datetime.datetime]:
    """Organizations and end of a certificate."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    organizations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return [str(item.value) for item in organizations], certificate.not_valid_after_utc
