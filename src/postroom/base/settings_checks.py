"""What is wrong between settings that are each well-formed (mail-server A1, A7, G1)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from .settings_tree import DkimAlgorithm, QueueSettings, RelayTls, Settings
from .settings_values import MAX_PORT


def cross_checks(settings: Settings) -> Iterator[str]:
    """Each fault, as the keys that it is about and what they want."""
    yield from _port_checks(settings)
    limits, database, tls = settings.limits, settings.database, settings.tls
    if limits.max_connections_per_ip > limits.max_connections:
        yield "limits.max_connections_per_ip: wants at most limits.max_connections"
    if database.min_connections > database.max_connections:
        yield "database.min_connections: wants at most database.max_connections"
    if (tls.cert_path is None) != (tls.key_path is None):
        yield "tls.cert_path, tls.key_path: both or neither must be set"
    if settings.queue.return_path_host == settings.platform_domain:
        yield "queue.return_path_host: wants a name of its own; mailboxes are at platform_domain"
    if settings.dkim.second_signature and settings.dkim.algorithm is not DkimAlgorithm.RSA_SHA256:
        yield "dkim.second_signature: wants dkim.algorithm = rsa-sha256, beside which it stands"
    yield from _relay_checks(settings.queue)
    yield from _passkey_checks(settings)


def _passkey_checks(settings: Settings) -> Iterator[str]:
    """Browsers refuse a domain that the page is not at or below (WebAuthn §5.1.3 step 8)."""
    domain, origins = settings.passkeys.rp_id or settings.api_host, settings.passkeys.origins
    for origin in origins:
        host = urlsplit(origin).hostname or ""
        if host != domain and not host.endswith(f".{domain}"):
            yield f"passkeys.origins: {origin} is not at {domain}, nor below it"
    if not origins and settings.api_host != domain and not settings.api_host.endswith(f".{domain}"):
        yield "passkeys.rp_id: wants to be api_host, or a domain that it is below, or passkeys.origins to be set"


def _relay_checks(queue: QueueSettings) -> Iterator[str]:
    """Credentials never travel in clear (N16), and only together."""
    if bool(queue.relay_username) != bool(queue.relay_password):
        yield "queue.relay_username, queue.relay_password: both or neither must be set"
    elif queue.relay_username and queue.relay_tls is RelayTls.NONE:
        yield "queue.relay_tls: none is refused where queue.relay_username is set"
    if queue.relay_username and not queue.relay_host:
        yield "queue.relay_host: wants to be set where queue.relay_username is"
    if queue.connect_timeout_secs > queue.delivery_timeout_secs:
        yield "queue.connect_timeout_secs: wants at most queue.delivery_timeout_secs"


def _port_checks(settings: Settings) -> Iterator[str]:
    smtp, imap, api = settings.smtp, settings.imap, settings.api
    if smtp.enabled and smtp.port == 0:
        yield "smtp.port: 0 is refused; to receive no mail set smtp.enabled = false"
    listeners = [
        ("smtp.port", smtp.enabled, smtp.port),
        ("smtp.submission_port", True, smtp.submission_port),
        ("smtp.smtps_port", True, smtp.smtps_port),
        ("lmtp.listen", True, 0 if settings.lmtp.endpoint is None else settings.lmtp.endpoint.port),
        ("imap.port", imap.enabled, imap.port),
        ("imap.imaps_port", imap.enabled, imap.imaps_port),
        ("api.port", api.enabled, api.port),
        ("api.tls_port", api.enabled, api.tls_port),
    ]
    if settings.metrics.endpoint is not None:
        first = settings.metrics.endpoint.port
        if first + settings.server.processes - 1 > MAX_PORT:
            yield "metrics.listen: each of server.processes wants a port, and there are not so many from there on"
        listeners += [("metrics.listen", True, first + n) for n in range(settings.server.processes)]
    users: dict[int, list[str]] = {}
    for name, enabled, port in listeners:
        if enabled and port:
            users.setdefault(port, []).append(name)
    for port, names in users.items():
        if len(names) > 1:
            yield f"{', '.join(names)}: all want port {port}; each listener needs one of its own"
