"""The certificates of a federation: what is there stays, and is renewed where it has to be."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from deploy import credentials
from deploy.credentials import LOOPBACK, Credentials, main, make_credentials
from fedapp.files import write_atomically


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(found: Credentials) -> set[str]:
    extensions = certificate(found.certificate).extensions
    alternative = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in alternative}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_there_stays(tmp_path: Path) -> None:
    make_credentials(tmp_path, ["a.example.org"], ["one"])
    before = files(tmp_path)
    make_credentials(tmp_path, ["a.example.org"], ["one"])
    make_credentials(tmp_path, ["0:0:0:0:0:0:0:1"], ["one"])
    assert files(tmp_path) == before


def test_a_further_host_is_added_to_the_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_credentials(tmp_path, ["a.example.org"], ["one"])
    before = files(tmp_path)
    assert main(["--to", str(tmp_path), "--host", "10.0.0.7"]) == 0
    assert names(found) == {"a.example.org", "10.0.0.7", *LOOPBACK}
    certificate(found.certificate).verify_directly_issued_by(certificate(found.ca))
    assert f"Renewed: {found.certificate}. Copy its folder" in capsys.readouterr().out
    changed = {name for name, content in files(tmp_path).items() if before[name] != content}
    assert changed == {"server/server.crt", "server/server.key"}
    assert found.key.stat().st_mode & 0o777 == 0o600


def test_certificates_that_end_soon_are_renewed_and_keys_of_nodes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "DAYS", 20)
        found = make_credentials(tmp_path, ["a.example.org"], ["one"])
    before, old = files(tmp_path), certificate(found.ca)
    assert main(["--to", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"Renewed: {found.ca}. Before the old one ends" in said
    assert f"Renewed: {found.certificate}" in said
    after = files(tmp_path)
    assert (
        after["one/ca.crt"] == after["server/ca.crt"] == after["ca/ca.crt"] != before["ca/ca.crt"]
    )
    assert (after["one/key"], after["ca/ca.key"]) == (before["one/key"], before["ca/ca.key"])
    assert names(found) == {"a.example.org", *LOOPBACK}
    for path in (found.ca, found.certificate):
        assert (certificate(path).not_valid_after_utc - old.not_valid_after_utc).days >= 800
    # Nodes that still hold the old authority trust the new certificate until that ends.
    certificate(found.certificate).verify_directly_issued_by(old)


def test_a_server_certificate_ends_no_later_than_its_authoritys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else connections would fail before the end that the server's certificate says."""
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "DAYS", 400)
        found = make_credentials(tmp_path, ["a.example.org"], [])
    make_credentials(tmp_path, ["b.example.org"], [])
    assert names(found) == {"a.example.org", "b.example.org", *LOOPBACK}
    ends = [certificate(path).not_valid_after_utc for path in (found.ca, found.certificate)]
    assert ends[0] == ends[1]


def test_a_server_certificate_that_is_elsewhere_is_named_where_the_authoritys_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "DAYS", 20)
        found = make_credentials(tmp_path / "all", ["a.example.org"], [])
    found.certificate.parent.rename(tmp_path / "on the server")
    assert main(["--to", str(tmp_path / "all")]) == 0
    missing = f"{found.certificate} is elsewhere and was not renewed"
    assert missing in capsys.readouterr().out
    assert main(["--to", str(tmp_path / "all")]) == 0
    assert missing not in capsys.readouterr().out


def test_a_federation_without_a_host_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--to", str(tmp_path), "--node", "one"]) == 2
    assert "--host" in capsys.readouterr().err


def test_no_second_authority_is_made_while_the_first_ones_key_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    make_credentials(folder, ["a.example.org"], ["one"])
    (folder / "ca").rename(elsewhere)
    before = files(folder)
    assert main(["--to", str(folder), "--node", "two"]) == 2
    assert f"{folder / 'ca' / 'ca.key'} is missing" in capsys.readouterr().err
    assert files(folder) == before
    elsewhere.rename(folder / "ca")
    assert main(["--to", str(folder), "--node", "two"]) == 0
    assert (folder / "two" / "ca.crt").read_bytes() == before["one/ca.crt"]


def test_a_device_is_added_while_the_servers_folder_is_on_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a server key that nobody uses; whose name is asked for where there is no authority."""
    folder, server = tmp_path / "c", tmp_path / "server"
    found = make_credentials(folder, ["a.example.org"], ["one"])
    (folder / "server").rename(server)
    assert main(["--to", str(folder), "--node", "two"]) == 0
    assert "SuperLink" not in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["ca", "one", "two"]
    assert (folder / "two" / "ca.crt").read_bytes() == (server / "ca.crt").read_bytes()
    assert main(["--to", str(folder), "--host", "b.example.org"]) == 0
    assert names(found) == {"b.example.org", *LOOPBACK}
    assert f"For the SuperLink: {folder / 'server'}" in capsys.readouterr().out
    for moved in ("ca", "server"):
        (folder / moved).rename(tmp_path / f"old-{moved}")
    assert main(["--to", str(folder), "--node", "three"]) == 2
    assert f"{folder / 'ca' / 'ca.key'} is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", ["a b", "", "münchen.example", "a.example:9092", "https://a.example", "[::1]"]
)
def test_a_host_that_no_name_or_address_is_is_refused(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--to", str(tmp_path / "c"), "--host", "a.example", "--host", host]) == 2
    assert f"--host {host}: must be an IP address, or a name of" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("host", ["server_1", "xn--mnchen-3ya.example", "10.0.0.7", "fe80::1"])
def test_names_and_addresses_are_hosts(host: str, tmp_path: Path) -> None:
    assert host in names(make_credentials(tmp_path, [host], []))


def load_key(path: Path) -> Any:
    if path.name == "key":
        return serialization.load_ssh_private_key(path.read_bytes(), None)
    return serialization.load_pem_private_key(path.read_bytes(), None)


@pytest.mark.parametrize("written", range(8))
def test_what_a_full_disk_left_is_made_whole_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """There is room for so many files, and for the beginning of one more."""
    open_file, room = os.fdopen, iter([True] * written)

    def opened(number: int, mode: str) -> Any:
        if next(room, False):
            return open_file(number, mode)
        os.write(number, b"-----BEGIN")
        os.close(number)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(os, "fdopen", opened)
        make_credentials(tmp_path / "c", ["a.example"], ["node"])
    found = make_credentials(tmp_path / "c", ["a.example"], ["node"])
    assert certificate(found.certificate).public_key() == load_key(found.key).public_key()
    ours = serialization.load_ssh_public_key(found.node_public_key("node").read_bytes())
    assert ours == load_key(found.node_key("node")).public_key()
    for folder in ("server", "node"):
        assert (tmp_path / "c" / folder / "ca.crt").read_bytes() == found.ca.read_bytes()
    for secret in (found.key, found.node_key("node"), tmp_path / "c" / "ca" / "ca.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700


def test_a_folder_in_which_others_may_write_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    for mode in (0o777, 0o720):
        folder.chmod(mode)
        assert main(["--to", str(tmp_path), "--host", "a.example", "--node", "node"]) == 2
        assert f"{folder}: other users may write here" in capsys.readouterr().err
        assert not list(folder.iterdir())
    folder.chmod(0o755)
    assert main(["--to", str(tmp_path), "--host", "a.example", "--node", "node"]) == 0
    certificate = (tmp_path / "server" / "server.crt").read_bytes()
    for other in (tmp_path / "server", tmp_path):
        other.chmod(0o775)
        assert main(["--to", str(tmp_path), "--host", "b.example"]) == 2
        assert f"{other}: other users may write here" in capsys.readouterr().err
        other.chmod(0o700)
    assert (tmp_path / "server" / "server.crt").read_bytes() == certificate


@pytest.mark.parametrize("linked", [True, False])
def test_a_secret_is_written_to_a_new_file(tmp_path: Path, linked: bool) -> None:
    """Another user may have made a link, or a file that all may read, of the temporary file's name."""
    planted, other = tmp_path / f".key.{os.getpid()}.tmp", tmp_path / "other"
    other.write_bytes(b"theirs")
    other.chmod(0o666)
    planted.symlink_to(other) if linked else planted.hardlink_to(other)
    write_atomically(tmp_path / "key", b"secret", 0o600)
    assert other.read_bytes() == b"theirs"
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert stat.S_IMODE((tmp_path / "key").lstat().st_mode) == 0o600
    assert not planted.exists()
