"""Keys and certificates for a trial: a CA, a certificate for the server, and a key pair for every site."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedpac.errors import ConfigError
from fedpac.files import explained, write_atomically
from fedpac.mods.ckks_keys import Parameters, write_key
from fedpac.privacy import KEY

DAYS = 365
SITES_ONLY = "sites-only"  # what no server may have
LOOPBACK = ("localhost", "127.0.0.1")  # the server's own processes speak to each other


def make_certificates(folder: Path, hosts: Sequence[str], sites: Sequence[str], ckks: bool = False) -> list[Path]:
    """Writes ca.crt, server.crt and server.key, and sites/NAME.key with NAME.pub. What is there already is kept.

    ckks   also sites-only/ckks.key, the secret of all sites that have a key here
    """
    written: list[Path] = []

    def write(name: str, data: bytes, mode: int) -> None:
        path = folder / name
        with explained(folder):
            write_atomically(path, data, mode=mode)
        written.append(path)

    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "sites").mkdir(exist_ok=True, mode=0o700)
    if not (folder / "server.crt").exists():
        if not hosts:
            raise ConfigError("the server certificate needs a host name or address: --host server.example.org")
        ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
        ca = _certificate("fedpac CA", ca_key, ca_key, None, ())
        server = _certificate("fedpac server", server_key, ca_key, ca, dict.fromkeys([*hosts, *LOOPBACK]))
        write("ca.key", _private(ca_key), 0o600)
        write("ca.crt", ca.public_bytes(serialization.Encoding.PEM), 0o644)
        write("server.key", _private(server_key), 0o600)
        write("server.crt", server.public_bytes(serialization.Encoding.PEM), 0o644)
    for site in sites:
        if not (folder / "sites" / f"{site}.pub").exists():
            key = ec.generate_private_key(ec.SECP384R1())
            write(f"sites/{site}.key", _private(key, serialization.PrivateFormat.OpenSSH), 0o600)
            public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            write(f"sites/{site}.pub", public + b"\n", 0o644)
    if ckks:
        number = len(list((folder / "sites").glob("*.pub")))
        if not number:
            raise ConfigError("a CKKS key depends on the number of sites: name them with --site")
        if write_key(folder / SITES_ONLY / KEY, Parameters.for_clients(number)):
            written.append(folder / SITES_ONLY / KEY)
    return written


def refuse_ckks_key(certificates: Path) -> None:
    """A server that has the sites' secret could read what they encrypt."""
    if (path := certificates / SITES_ONLY / KEY).exists():
        raise ConfigError(
            f"the server must not hold the sites' secret key {path}: give it to the sites and remove it here"
        )


def _certificate(name: str, key: Any, signer: Any, issuer: x509.Certificate | None, hosts: Any) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Any, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    data: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return data


def read_private_key(path: Path) -> tuple[Any, Any]:
    """A site's key pair, from a file that nobody else can read."""
    with explained(path):
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others can read the key {path}: chmod 600 {path}")
        data = path.read_bytes()
    try:
        private = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a site's private key ({error}); create one with 'fedpac certs'") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not an elliptic-curve key; create one with 'fedpac certs'")
    return private, private.public_key()


def read_public_key(path: Path) -> bytes:
    """In the form in which Flower names a node."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    with explained(path):
        data = path.read_bytes()
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a site's public key ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} is not an elliptic-curve key; create one with 'fedpac certs'")
    return public_key_to_bytes(key)
