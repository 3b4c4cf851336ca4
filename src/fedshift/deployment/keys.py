"""Members' identities: certificates, sites' key pairs, and proofs that a site sent its earlier replies.

All keys are of the curve P-384. Private keys have no password, so only the owner may read their files.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedshift.errors import FedshiftError, needs

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

YEARS = 2
EARLIER = timedelta(hours=1)  # a certificate is valid from then, for clocks that are behind


class Pair(NamedTuple):
    """A public part and its private key, as texts of files."""

    public: bytes
    private: bytes


def make_certificates(federation: str, hosts: Sequence[str]) -> tuple[Pair, Pair]:
    """A certificate authority for trials and the coordinator's certificate, each with its key, valid for two years.

    The owner of the authority's key can impersonate the coordinator.

    Args:
        federation: the federation's name, a prefix of the authority's name.
        hosts: the coordinator's host names and addresses.
    """
    trusted, key = _new_key(), _new_key()
    authority = _certificate(f"{federation}: authority for trials", trusted)
    server = _certificate(hosts[0][:64], key, (authority, trusted), hosts)  # the standard has 64 letters at most
    return _pem(authority, trusted), _pem(server, key)


def site_pair() -> Pair:
    """A new key pair for a site in OpenSSH's formats, as `ssh-keygen -t ecdsa -b 384` writes them."""
    key = _new_key()
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    return Pair(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
    )


def read_public_key(file: Path) -> bytes:
    """An OpenSSH public key in PEM, as Flower keeps it."""
    with needs("flower", "A federation"):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (ValueError, OSError) as error:
        raise FedshiftError(f"'{file}' is no public key in OpenSSH's format ({error}).") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _new_key() -> ec.EllipticCurvePrivateKey:
    with needs("flower", "Making keys and certificates"):
        from cryptography.hazmat.primitives.asymmetric import ec
    return ec.generate_private_key(ec.SECP384R1())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """A server's certificate for some hosts; without an issuer, an authority's self-signed certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    is_authority, signer = issuer is None, key if issuer is None else issuer[1]
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= {"digital_signature": not is_authority, "key_cert_sign": is_authority, "crl_sign": is_authority}
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True),
        (x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), True),
    ]
    if issuer is not None:
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        extensions += [
            (x509.SubjectAlternativeName(names), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        ]
    builder = x509.CertificateBuilder(
        issuer_name=subject if issuer is None else issuer[0].subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - EARLIER,
        not_valid_after=now + timedelta(days=365 * YEARS),
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, SHA384())


def _general_name(host: str) -> x509.GeneralName:
    """A host as a certificate has it: a numeric address, or a name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), private)


# A site's history -----------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """The SHA-256 of a message in hexadecimal digits, known to its sender and receiver only."""
    return sha256(data).hexdigest()


def commitment(reply: str) -> str:
    """The digest of a reply's digest, which identifies the reply to its site without revealing it."""
    return digest(reply.encode())


def make_proof(reply: str, request: bytes) -> str:
    """A proof about a request that only a site that sent a certain reply can give.

    A reply with its proof enters the next proof, so proofs form a chain: a thief of the site's key cannot continue it.

    Args:
        reply: the digest of the reply to which the request commits; if it is empty, the proof is empty.
        request: the request's bytes.
    """
    return hmac(reply.encode(), request, sha256).hexdigest() if reply else ""


def is_proof(given: str, reply: str, request: bytes) -> bool:
    """Whether a site's proof is right, in constant time."""
    return compare_digest(given.encode(), make_proof(reply, request).encode())
