"""A certificate for one run: made when the run begins, known to its functions by their invocation.

Nobody signs it but itself, and nobody needs to: the only ones that take it are functions to which
the run's own invocations, over AWS's TLS, have brought it.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

from seqgc._durable import temporary_folder
from seqgc.errors import ParameterError
from seqgc.worker._line import CERTIFIED_NAME

__all__ = ["tls_server"]

_BEFORE, _AFTER = timedelta(days=1), timedelta(days=60)  # it must say so; functions do not look


def tls_server() -> tuple[ssl.SSLContext, str]:
    """Return a master's new context, and the certificate (PEM) that its functions must take.

    Raises `ParameterError` if what makes certificates is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        rule = f"needs what is not installed, to encrypt ({error})"
        raise ParameterError("resident", rule, True, "pip install 'seqgc[aws]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFIED_NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with temporary_folder("seqgc-tls-") as folder:  # ssl reads keys from files only
        file = folder / "both.pem"
        file.write_bytes(secret + pem)
        context.load_cert_chain(file)
    return context, pem.decode("ascii")
