"""Keys and certificates: a certificate authority for trials, the coordinator's certificate, and sites' key pairs.

All keys are of the curve P-384. Private ones have no password, so their files are for their owner's eyes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    """A public part, which others get, and the private key to it, which they must not: texts of files."""

    public: bytes
    private: bytes


@dataclass(frozen=True)
class Authority:
    """A certificate authority for trials: whoever has its key can pass for the coordinator.

    Attributes:
        certificate: what members trust.
        key: what signs the coordinator's certificate.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, federation: str) -> Authority:
        """A new authority, valid for two years.

        Args:
            federation: the federation's name, which the certificate's begins with.

        Raises:
            FedshiftError: the extra 'flower' is not installed.
        """
        key = _new_key()
        from cryptography import x509

        name = _name(f"{federation}: authority for trials")
        builder = _certificate(name, name, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(_signed(builder, key), key)

    def pair(self) -> Pair:
        """The authority's certificate and its key, in PEM."""
        return Pair(_pem(self.certificate), _private_pem(self.key))

    def server(self, hosts: Sequence[str]) -> Pair:
        """A new certificate, for a server that is reached under these host names and addresses, and its key, in PEM."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        builder = _certificate(_name(hosts[0][:64]), self.certificate.subject, key)  # the standard has 64 at most
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        builder = builder.add_extension(alternatives, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return Pair(_pem(_signed(builder.add_extension(issuer, critical=False), self.key)), _private_pem(key))


def site_pair() -> Pair:
    """A site's new key pair in OpenSSH's formats, as `ssh-keygen -t ecdsa -b 384` writes them.

    Raises:
        FedshiftError: the extra 'flower' is not installed.
    """
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
    """A public key in OpenSSH's format, in PEM, as Flower keeps it.

    Raises:
        FedshiftError: it is none.
    """
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


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    """A host as a certificate has it: an address of numbers, or a name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """What every certificate says."""
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - EARLIER).not_valid_after(now + timedelta(days=365 * YEARS))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA384

    return builder.sign(key, SHA384())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
