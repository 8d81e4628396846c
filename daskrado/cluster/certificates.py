"""A certificate authority of a cluster's own, and a certificate for each node: Dask's TLS accepts nobody else.

Whoever holds ``ca-key.pem`` can make more nodes, so it belongs with the cluster's owner and on no worker. Every node
holds one pair of files; Dask checks both ends of every connection against the authority.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from daskrado.errors import UsageError
from daskrado.lake.publish import new_folder

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ROLES = ("scheduler", "worker", "client")


def make_certificates(
    folder: str | Path,
    *,
    nodes: Sequence[str] = ROLES,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
) -> list[Path]:
    """Write ``ca.pem``, ``ca-key.pem`` and, for each node, ``NODE.pem`` and ``NODE-key.pem``.

    Keys can be read by their owner only. ``hosts`` are the names and addresses by which nodes may
    be reached. The folder appears whole or not at all.
    """
    if not 1 <= days <= 3650:
        raise UsageError(f"--days must be between 1 and 3650, got {days}")
    names = list(dict.fromkeys(nodes))
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum() or name == "ca":
            raise UsageError(f"--node {name!r}: a name has letters, digits, '-' and '_', and is not 'ca'")
    authority_key = _key()
    authority = _certificate("daskrado cluster authority", authority_key, None, authority_key, (), days)
    with new_folder(folder) as target:
        _write(target, "ca", authority, authority_key)
        for name in names:
            key = _key()
            _write(target, name, _certificate(name, key, authority, authority_key, hosts, days), key)
    return sorted(Path(folder).iterdir())


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of nodes differ a little
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not authority,
                key_cert_sign=authority,
                crl_sign=authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not authority:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # a worker is both
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle = os.open(folder / f"{name}-key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(private)
