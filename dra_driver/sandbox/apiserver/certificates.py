# SPDX-License-Identifier: Apache-2.0
"""A temporary certificate authority and a server certificate. Each server creates new ones.

The keys are elliptic-curve keys, because these take only a millisecond to generate. Private keys stay in memory, except
while Python's `ssl` reads the server's key from a file that only this user can read.
"""

import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_LIFETIME: Final = timedelta(days=30)
_CLOCK_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """A server certificate, its key and its certificate authority, in PEM."""

    authority: bytes
    """The CA's certificate, which clients must trust."""
    certificate: bytes
    key: bytes

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context with the certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory(prefix="dra-sandbox-") as folder:
            path = Path(folder) / "server.pem"
            path.touch(mode=0o600)
            path.write_bytes(self.key + self.certificate)
            context.load_cert_chain(path)
        return context


def make_certificates(hosts: Iterable[str]) -> Certificates:
    """Create a CA, and a certificate that it signs for `hosts` (names or addresses)."""
    # The import is here because a server without TLS does not need the package.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    begin = datetime.now(UTC) - _CLOCK_SKEW
    end = begin + _CLOCK_SKEW + _LIFETIME
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = name("dra-sandbox-ca")
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    authority = (
        x509.CertificateBuilder(ca_name, ca_name, ca_key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder(
            ca_name, name("dra-sandbox-apiserver"), key.public_key(), x509.random_serial_number(), begin, end
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
