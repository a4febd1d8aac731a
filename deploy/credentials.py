"""Certificates and keys of a federation: ``python deploy/credentials.py --host NAME --node NAME ...``.

Makes, in one folder, three kinds of folder, each for one place:

``ca/``        the authority's key; stays where it was made, offline
``server/``    ``ca.crt``, ``server.crt``, ``server.key``: for the SuperLink
``<node>/``    ``ca.crt``, ``key``: for that SuperNode; ``key.pub`` is for ``flwr supernode register``

What is there stays: called again with further nodes, it adds them; with further hosts, or when
certificates end soon, it renews these and keeps the authority's key and the nodes'.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import re
import shlex
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    sys.exit(f"Error: {error.name} is not installed. Run: pip install 'fedapp[deploy]'")

from fedapp.files import write_atomically

DAYS = 825
"""Days that certificates hold; a server's no longer than its authority's."""

RENEWAL = datetime.timedelta(days=30)
"""Certificates that end within this time are renewed."""

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
RESERVED = ("ca", "server")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""How the SuperLink's own processes call it when it listens on all addresses."""


class CredentialsError(Exception):
    """Credentials cannot be made as asked; the text says what to change."""


@dataclass(frozen=True)
class Credentials:
    """Paths of a federation's certificates and keys."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate, which everybody trusts."""
        return self.folder / "ca" / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The SuperLink's certificate."""
        return self.folder / "server" / "server.crt"

    @property
    def key(self) -> Path:
        """The SuperLink's key."""
        return self.folder / "server" / "server.key"

    def node_key(self, name: str) -> Path:
        """Return the private key of a SuperNode."""
        return self.folder / name / "key"

    def node_public_key(self, name: str) -> Path:
        """Return the public key of a SuperNode, to be registered at the SuperLink."""
        return self.folder / name / "key.pub"


def make_credentials(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> Credentials:
    """Make what is not there yet: authority, server certificate for ``hosts``, keys of ``nodes``.

    A server certificate without one of the hosts is renewed for those that it had and these, and one
    that ends within ``RENEWAL`` too; the authority's then as well, in every folder that holds it. Without
    hosts none is made for a server whose folder is elsewhere.

    Raises
    ------
    CredentialsError
        A node's name cannot be that of a folder, a host's is none, there is no host and no authority
        yet, the authority's key is elsewhere, or others may write in a folder.
    """
    found = Credentials(folder)
    _check_names(hosts, nodes)
    _require_authority(found, hosts)
    _require_own(folder)
    authority = _authority(found)
    if _ends_soon(found.ca):
        _certify_authority(found, authority)
    known = _names(found.certificate)
    asked = [str(_address(host).value) for host in hosts]  # as a certificate has them
    names = [*known, *asked]
    if names and (not set(asked) <= set(known) or _ends_soon(found.certificate)):
        _make_server(found, authority, names)
    for name in nodes:
        if not found.node_key(name).exists():
            _make_node(found, name)
    return found


def _require_own(folder: Path) -> None:
    """Make the folder, or refuse it if others may write in it or in one of its folders."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in (folder, *filter(Path.is_dir, sorted(folder.iterdir()))):
        if each.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CredentialsError(
                f"{each}: other users may write here, and replace keys. Remove what is not yours, "
                f"then: chmod go-w {shlex.quote(str(each))}"
            )


def _ends_soon(certificate: Path) -> bool:
    """Return whether a certificate is to be renewed, or is not there yet."""
    if not certificate.exists():
        return True
    ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return ends - datetime.datetime.now(tz=datetime.UTC) < RENEWAL


def _names(certificate: Path) -> list[str]:
    """Return the hosts that a certificate is for, none where there is none."""
    if not certificate.exists():
        return []
    extensions = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _require_authority(found: Credentials, hosts: Sequence[str]) -> None:
    """Refuse to make a second authority beside what the first one signed, or one for no server."""
    key = found.ca.with_name("ca.key")
    if key.exists():
        return
    if found.certificate.exists() or any(found.folder.glob("*/ca.crt")):
        raise CredentialsError(
            f"{key} is missing. Bring {key.parent} back from where you keep it, or start in a new folder."
        )
    if not hosts:
        raise CredentialsError("--host: name the SuperLink's address as nodes will call it.")


def _authority(found: Credentials) -> ec.EllipticCurvePrivateKey:
    """Return the authority's key, which is made if it is not there."""
    path = found.ca.with_name("ca.key")
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CredentialsError(f"{path}: is no key that this script made.")
        return key
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, _pem(key))
    return key


def _certify_authority(found: Credentials, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the authority's certificate, also into the folders of the server and of nodes."""
    name = _name("fedapp federation authority")
    signing = dict.fromkeys(KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        _builder(name, name, key, _latest())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**signing), critical=True)
        .sign(key, hashes.SHA384())
    )
    for path in [*{*found.folder.glob("*/ca.crt")} - {found.ca}, found.ca]:
        _write(path, certificate.public_bytes(serialization.Encoding.PEM))


KEY_USES = (
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


def _make_server(
    found: Credentials, authority: ec.EllipticCurvePrivateKey, hosts: Sequence[str]
) -> None:
    issuer = x509.load_pem_x509_certificate(found.ca.read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    names = dict.fromkeys([*hosts, *LOOPBACK])
    found.certificate.unlink(missing_ok=True)  # it is written last: where it is, its key is too
    uses = dict.fromkeys(KEY_USES, False) | {"digital_signature": True}
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        _builder(_name(hosts[0]), issuer.subject, key, min(_latest(), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*map(_address, names)]), critical=False)
        .add_extension(above, critical=False)
        .sign(authority, hashes.SHA384())
    )
    _write_secret(found.key, _pem(key))
    _write(found.certificate.with_name("ca.crt"), found.ca.read_bytes())
    _write(found.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _make_node(found: Credentials, name: str) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(found.node_public_key(name), public + f" {name}\n".encode())
    _write(found.node_key(name).with_name("ca.crt"), found.ca.read_bytes())
    _write_secret(found.node_key(name), secret)  # last: where it is, the others are too


def _latest() -> datetime.datetime:
    """Return when a certificate that is made now ends at the latest."""
    return datetime.datetime.now(tz=datetime.UTC) + datetime.timedelta(days=DAYS)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime.datetime
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(tz=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour for clocks that are slow.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _address(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if _is_ip(host) else x509.DNSName(host)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_names(hosts: Sequence[str], nodes: Sequence[str]) -> None:
    """Refuse what is no name of a node, and what is neither a host's name nor its address."""
    for name in nodes:
        if not NODE_NAME.fullmatch(name) or name in RESERVED:
            raise CredentialsError(
                f"--node {name}: must be letters, digits, '.', '_' and '-', and not "
                f"{' or '.join(RESERVED)}."
            )
    for host in hosts:
        if not _is_ip(host) and not HOST_NAME.fullmatch(host):
            raise CredentialsError(
                f"--host {host}: must be an IP address, or a name of letters, digits, '.', '_' and '-', "
                "without a port."
            )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file, whole or not at all, in a folder that is the owner's."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_atomically(path, content, mode)


def _write_secret(path: Path, content: bytes) -> None:
    _write(path, content, 0o600)


WHERE_TO = {
    "ca": "Before the old one ends, copy the ca.crt of each folder to its place, and to the file that "
    "root-certificates in config.toml names, and start the SuperLink and the SuperNodes again.",
    "server": "Copy its folder to the server, and start the SuperLink again.",
}


def _content(found: Credentials) -> dict[Path, bytes]:
    """Return the certificates that are there."""
    return {path: path.read_bytes() for path in (found.ca, found.certificate) if path.exists()}


def main(arguments: Sequence[str]) -> int:
    """Make credentials as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python deploy/credentials.py",
        description="Make the certificates and keys of a federation; what is there stays, or is renewed.",
    )
    parser.add_argument("--to", type=Path, default=Path("credentials"), help="the folder")
    parser.add_argument(
        "--host", action="append", default=[], help="name or IP address of the SuperLink"
    )
    parser.add_argument("--node", action="append", default=[], help="name of a SuperNode")
    given = parser.parse_args(arguments)
    before = _content(Credentials(given.to))
    try:
        found = make_credentials(given.to, given.host, given.node)
    except (CredentialsError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for path, content in before.items():
        if content != path.read_bytes():
            print(f"Renewed: {path}. {WHERE_TO[path.parent.name]}")
    if found.certificate.exists():
        print(f"For the SuperLink: {found.certificate.parent}")
    elif found.ca in before and before[found.ca] != found.ca.read_bytes():
        print(
            f"{found.certificate} is elsewhere and was not renewed: bring it back, or name --host."
        )
    for name in given.node:
        print(f"For the SuperNode {name}: {found.node_key(name).parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
