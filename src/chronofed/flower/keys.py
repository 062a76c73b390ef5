"""A certificate for the SuperLink and key pairs for SuperNodes, in the formats that Flower expects.

The key of the certificate authority is discarded after it has signed the SuperLink's certificate, so nobody can
sign another. Private keys are readable by their owner only.
"""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.core.errors import MissingExtraError, RunError, SpecError, cannot_write

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CERTIFICATE, KEY = "ca.crt", "superlink.pem", "superlink.key"


def make_keys(folder: Path, clients: int, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """Write a certificate for a SuperLink and one key pair for every SuperNode.

    Args:
        folder: The folder; it must not contain keys already.
        clients: Number of SuperNodes.
        hosts: Names and addresses of the SuperLink's machine.
        days: Days for which the certificate is valid.

    Returns:
        The files.

    Raises:
        RunError: If the folder contains keys already.
        SpecError: If there are no clients or no hosts.
        StorageError: If the files cannot be written.
    """
    if find_spec("cryptography") is None:
        raise MissingExtraError("flwr", "flower", "making keys")
    if clients < 1 or not hosts or days < 1:
        raise SpecError("keys: expected at least one client, one --host and one day")
    if (folder / CA).exists():
        raise RunError(f"{folder} contains keys already; use another folder")
    files = _link(list(hosts), days)
    for client in range(clients):
        files |= _node(client)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            _write(folder / name, content, secret=not name.endswith((".crt", ".pem", ".pub")))
    except OSError as error:
        raise cannot_write(folder, error) from error
    return [folder / name for name in files]


def _link(hosts: list[str], days: int) -> dict[str, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority, own = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root = _certificate("chronofed authority", authority, None, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    names = x509.SubjectAlternativeName([_name(host) for host in hosts])
    leaf = _certificate(hosts[0], own, "chronofed authority", days).add_extension(names, False)
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return {
        CA: _signed(root, authority),
        CERTIFICATE: _signed(leaf, authority),
        KEY: own.private_bytes(pem, pkcs8, plain),
    }


def _certificate(
    subject: str, key: "ec.EllipticCurvePrivateKey", issuer: str | None, days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    # A few minutes early, for machines whose clocks are behind.
    start = datetime.now(UTC) - timedelta(minutes=5)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer or subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
    )


def _signed(builder: "x509.CertificateBuilder", key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def _name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _node(client: int) -> dict[str, bytes]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    openssh, pem = serialization.PrivateFormat.OpenSSH, serialization.Encoding.PEM
    public = serialization.PublicFormat.OpenSSH
    return {
        f"client-{client}": key.private_bytes(pem, openssh, serialization.NoEncryption()),
        f"client-{client}.pub": key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, public
        ),
    }


def _write(path: Path, content: bytes, *, secret: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
