"""Certificates for the hub and key pairs for nodes, in the formats that Flower and nginx expect.

The key of the certificate authority stays in the folder, so that a certificate can be renewed while nodes keep
``ca.crt``. Private keys are readable by their owner only.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.core.errors import MissingExtraError, RunError, SpecError, cannot_write

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "superlink.pem", "superlink.key"
HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
INNER = ("loopback.pem", "loopback.key")
"""Certificate and key of a SuperLink that only a proxy on the same machine reaches."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1")
AUTHORITY = "chronofed authority"
AUTHORITY_DAYS = 3650
"""Days for which the certificate authority is valid; only the hub's certificate is renewed."""
PUBLIC_SUFFIXES = (".crt", ".pem", ".pub")
"""Ends of the names of files that anyone may read."""


def make_keys(folder: Path, clients: int, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """Write an authority, a certificate for the hub, and one key pair for every node.

    Args:
        folder: The folder; it must not contain keys already.
        clients: Number of nodes.
        hosts: Names and addresses of the hub's machine.
        days: Days for which the hub's certificate is valid.

    Returns:
        The files.

    Raises:
        RunError: If the folder contains keys already.
        SpecError: If there are no clients or no hosts.
        StorageError: If the files cannot be written.
    """
    check_cryptography()
    if clients < 1:
        raise SpecError("keys: expected at least one client, one --host and one day")
    files = dict(authority(folder, hosts, days))
    for client in range(clients):
        files |= node_keys(f"client-{client}")
    return write_files(folder, files)


def check_cryptography() -> None:
    """Refuse to go on without the package that makes keys.

    Raises:
        MissingExtraError: If it is not installed.
    """
    if find_spec("cryptography") is None:
        raise MissingExtraError("flwr", "flower", "making keys")


def authority(folder: Path, hosts: Sequence[str], days: int) -> Mapping[str, bytes]:
    """Return the files of a new authority and of its certificate for the hub, which are not written yet.

    Raises:
        RunError: If the folder contains keys already.
        SpecError: If there are no hosts or days.
    """
    if not hosts or days < 1:
        raise SpecError("keys: expected at least one client, one --host and one day")
    if (folder / CA).exists():
        raise RunError(f"{folder} contains keys already; use another folder")
    key = _new_key()
    root = _signed(_authority(key), key)
    secret = _private(key)
    inner = _leaf(root, secret, LOOPBACK_HOSTS, AUTHORITY_DAYS, INNER)
    return {CA: root, CA_KEY: secret, **inner, **_leaf(root, secret, hosts, days)}


def renew(folder: Path, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """Replace the hub's certificate and its key; nodes keep the certificate of the authority.

    Args:
        folder: Folder that :func:`make_keys` wrote.
        hosts: Names and addresses of the hub's machine.
        days: Days for which the new certificate is valid.

    Returns:
        The files.

    Raises:
        RunError: If the authority's key is not there.
        StorageError: If the files cannot be written.
    """
    check_cryptography()
    try:
        root, key = (folder / CA).read_bytes(), (folder / CA_KEY).read_bytes()
    except OSError as error:
        msg = f"{folder}: cannot renew the certificate without {CA} and {CA_KEY}; copy them back"
        raise RunError(msg) from error
    return write_files(folder, _leaf(root, key, hosts, days))


def expires(certificate: Path) -> datetime:
    """Return the time at which a certificate expires."""
    from cryptography import x509

    until: datetime = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return until


def node_keys(name: str) -> dict[str, bytes]:
    """Return the key pair of a node, as files that are not written yet."""
    from cryptography.hazmat.primitives import serialization

    key = _new_key()
    openssh, pem = serialization.PrivateFormat.OpenSSH, serialization.Encoding.PEM
    public = serialization.PublicFormat.OpenSSH
    return {
        name: key.private_bytes(pem, openssh, serialization.NoEncryption()),
        f"{name}.pub": key.public_key().public_bytes(serialization.Encoding.OpenSSH, public),
    }


def key_header(public: bytes) -> str:
    """Return the header in which Flower's nodes send their public key, from its file."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_public_key(public)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return base64.b64encode(key.public_bytes(serialization.Encoding.PEM, form)).decode()


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files atomically; those that are secret can be read by their owner only.

    Raises:
        StorageError: If they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            _write(folder / name, content, secret=not name.endswith(PUBLIC_SUFFIXES))
    except OSError as error:
        raise cannot_write(folder, error) from error
    return [folder / name for name in files]


def _leaf(
    root: bytes,
    key: bytes,
    hosts: Sequence[str],
    days: int,
    names_of_files: tuple[str, str] = (CERTIFICATE, KEY),
) -> dict[str, bytes]:
    """Return a certificate for some hosts and its new key."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, signer = x509.load_pem_x509_certificate(root), _loaded(key)
    own = _new_key()
    names = x509.SubjectAlternativeName([_name(host) for host in hosts])
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    # Not beyond the authority's own end.
    until = min(_start() + timedelta(days=days), issuer.not_valid_after_utc)
    leaf = (
        _certificate(hosts[0], own, until)
        .issuer_name(issuer.subject)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(server, critical=False)
        .add_extension(authority_key, critical=False)
    )
    certificate, secret = names_of_files
    return {certificate: _signed(leaf, signer), secret: _private(own)}


def _authority(key: "ec.EllipticCurvePrivateKey") -> "x509.CertificateBuilder":
    from cryptography import x509

    signs = dict.fromkeys(_USES, False) | {"key_cert_sign": True, "crl_sign": True}
    return (
        _certificate(AUTHORITY, key, _start() + timedelta(days=AUTHORITY_DAYS))
        .issuer_name(_subject(AUTHORITY))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**signs), critical=True)
    )


_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _certificate(
    subject: str, key: "ec.EllipticCurvePrivateKey", until: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_start())
        .not_valid_after(until)
        .add_extension(own, critical=False)
    )


def _start() -> datetime:
    """Return a time a few minutes ago, for machines whose clocks are behind."""
    return datetime.now(UTC) - timedelta(minutes=5)


def _subject(text: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError as error:
        if not HOST_NAME.fullmatch(host):
            msg = f"{host!r} is not a name or an address of a machine, such as hub.example.org or 192.0.2.7"
            raise SpecError(msg) from error
        return x509.DNSName(host)


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _loaded(key: bytes) -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    found = serialization.load_pem_private_key(key, None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise RunError(f"{CA_KEY}: not a key that chronofed made; make new keys")
    return found


def _private(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def _signed(builder: "x509.CertificateBuilder", key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def _write(path: Path, content: bytes, *, secret: bool) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
