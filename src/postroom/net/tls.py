"""TLS is always on (D23): the configured certificate, else a self-signed one that lives in the data directory (G1)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.base import log as base_log

log = base_log.get("tls")

SELF_SIGNED_DAYS: Final = 825
RENEW_DAYS: Final = 30
DIRECTORY: Final = "tls"

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files a server context is made of; `self_signed` when no other certificate could be had."""

    cert_path: Path
    key_path: Path
    self_signed: bool


def certificate(
    cert_path: Path | None, key_path: Path | None, *, data_dir: Path, hostnames: tuple[str, ...], now: datetime
) -> Certificate:
    """The configured certificate if it can be opened; else the self-signed one, made or renewed as needed (G1).

    Raises OSError when neither can be had.
    """
    if cert_path is not None and key_path is not None:
        try:
            _loadable(cert_path, key_path)
            return Certificate(cert_path, key_path, self_signed=False)
        except (OSError, ssl.SSLError) as error:
            log.error("certificate_unusable", error=type(error).__name__)
    return _self_signed(data_dir / DIRECTORY, hostnames, now)


def server_context(found: Certificate, *, min_version: str = "1.2", alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
    """A context for listeners. Raises ssl.SSLError or OSError when the files don't fit together."""
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(found.cert_path, found.key_path)
    context.end_point = _end_point(context)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


class _ServerContext(ssl.SSLContext):
    """A context of ours, which knows what a channel is bound to that shows its certificate."""

    end_point: bytes | None = None
    came_later: bool = False
    """Whether it takes the place of an earlier one, under which sessions may have begun."""


def end_point(connection: object) -> bytes | None:
    """tls-server-end-point of a connection, by its `ssl_object`: what binds to the certificate that its client was
    shown (RFC 5929 §4.1).

    None without TLS, under a context that is not of `server_context`, for a certificate whose signature has no hash
    function of its own, and for a session that is resumed after the certificate was renewed: the client was shown the
    one before (RFC 5929 §4 has it that one's), and nobody knows which that was.
    """
    if not isinstance(connection, ssl.SSLObject | ssl.SSLSocket):
        return None
    context = connection.context  # what `replace_certificate` chose for this very connection
    if not isinstance(context, _ServerContext) or (context.came_later and connection.session_reused):
        return None
    return context.end_point


def _end_point(context: ssl.SSLContext) -> bytes | None:
    shown = _shown(context)
    if shown is None:
        return None
    try:
        algorithm = x509.load_der_x509_certificate(shown).signature_hash_algorithm
        if algorithm is None:
            return None
        # §4.1: the hash of the signature, but nothing weaker than SHA-256.
        name = "sha256" if algorithm.name in ("md5", "sha1") else algorithm.name.replace("-", "_")
        return hashlib.new(name, shown).digest()
    except (ValueError, UnsupportedAlgorithm):
        return None


def _shown(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a client of the context is shown, by being one: the file may have changed since it was read,
    and holds more than that.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    asking.set_ciphers("ALL:@SECLEVEL=0")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asking.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for end in (client, server) * 3:  # TLS 1.2 takes two turns and a half
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            log.warning("certificate_not_shown", error=type(error).__name__)
            return None
    return client.getpeercert(binary_form=True)


class CertificateFiles:
    """Notices that the files of a certificate changed, so that a renewed one is used without a restart (G1)."""

    def __init__(self, cert_path: Path, key_path: Path) -> None:
        self._paths = cert_path, key_path
        self._seen = self._state()

    def renewed(self) -> ssl.SSLContext | None:
        """A context with the files' certificate if they changed since this was asked last; for `replace_certificate`.

        Reads them, so it blocks. A pair that does not fit together is told of once in the log, and read again when it
        changes.
        """
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._paths)
            context.end_point, context.came_later = _end_point(context), True
        except (OSError, ssl.SSLError) as error:
            log.error("new_certificate_unusable", error=type(error).__name__)
            return None
        return context

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_identity, self._paths))


def replace_certificate(context: ssl.SSLContext, renewed: ssl.SSLContext) -> None:
    """Let handshakes to come under `context` show the certificate of `renewed`; everything else stays.

    Loading into `context` itself would not do: OpenSSL keeps a certificate for each type of key, so that an old one of
    another type would live on beside the new one.
    """

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, asked: ssl.SSLContext, /) -> None:
        connection.context = renewed

    context.sni_callback = choose
    log.info("certificate_renewed")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _loadable(cert_path: Path, key_path: Path) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_path, key_path)


def _self_signed(directory: Path, hostnames: tuple[str, ...], now: datetime) -> Certificate:
    found = Certificate(directory / "self-signed.pem", directory / "self-signed.key", self_signed=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Processes that start together take turns: else the key of one and the certificate of another would remain.
    with (directory / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _still_good(found, hostnames, now):
            _make_self_signed(found, hostnames, now)
    return found


def _make_self_signed(found: Certificate, hostnames: tuple[str, ...], now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hostnames[0][:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hostnames]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The key first: a crash between the two leaves a pair that does not fit, which the next start replaces.
    _replace(found.key_path, private)
    _replace(found.cert_path, made.public_bytes(serialization.Encoding.PEM))
    log.warning("self_signed_certificate_made")


def _still_good(found: Certificate, hostnames: tuple[str, ...], now: datetime) -> bool:
    try:
        _loadable(found.cert_path, found.key_path)
        made = x509.load_pem_x509_certificate(found.cert_path.read_bytes())
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ssl.SSLError, ValueError, x509.ExtensionNotFound):
        return False
    named = set(names.get_values_for_type(x509.DNSName))
    return set(hostnames) <= named and made.not_valid_after_utc - timedelta(days=RENEW_DAYS) > now


def _replace(path: Path, content: bytes) -> None:
    staged = path.with_suffix(f".{os.getpid()}.tmp")
    with open(staged, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
