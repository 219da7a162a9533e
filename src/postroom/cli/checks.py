"""What `postroom doctor` looks at (cli-config-ops C9): pass, warn, fail or skip, each failure with a fix.

Nothing is made or changed, but that a bundled PostgreSQL that is not running is started for the length of the checks.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import stat
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from postroom.base.clock import SystemClock
from postroom.base.sealing import Keyring
from postroom.base.secrets import load_secrets
from postroom.base.settings import Environment, Settings, SettingsError
from postroom.blobs.maildir import MaildirStore
from postroom.blobs.store import MarkerMismatch, StorageError
from postroom.cli.check_ports import LABELS, ports
from postroom.cli.check_sending import DIRECT, RELAY, domains, outbound, queue
from postroom.cli.failures import CliError
from postroom.cli.invocation import Invocation
from postroom.cli.reach import Reached, is_set_up, reach
from postroom.cli.verdicts import Check, Status, failed, passed, skipped, warned
from postroom.db import ConnectionTarget, Database, Migrator
from postroom.db.errors import DatabaseError
from postroom.db.reseal import look, standing
from postroom.outbound.signing import DkimKeys
from postroom.servers.http.security_text import SecurityText

TIMEOUT: Final = 20.0
"""Seconds that one check may take."""
LOOK: Final = 15.0
"""Seconds for opening what is stored sealed: about a million values."""
EXPIRY_DAYS: Final = 14
SECURITY_DAYS: Final = 30
SEALED: Final = "secrets.sealed"
LOW_DISK_SHARE: Final = 0.10
LOW_DISK_BYTES: Final = 1024**3
MAX_CERTIFICATE: Final = 1024 * 1024

# Names that can never be reached from outside (RFC 2606, RFC 6761, RFC 6762, RFC 8375).
_PRIVATE_TLDS: Final = frozenset(
    ("example", "invalid", "test", "localhost", "local", "internal", "lan", "home", "arpa")
)


NAMES: Final = (
    *("configuration", "data_dir", "secrets", "database", "migrations", "storage", SEALED),
    *("queue.deliveries", "queue.uncertain", "queue.bounces", "dlq", "sending.domains", RELAY, DIRECT),
    *(f"port.{label}" for label in LABELS),
    *("tls", "dns", "security_txt"),
)
"""What is looked at, in the order in which it is told."""
_IN_DATABASE: Final = NAMES[3:12]


async def examine(
    call: Invocation, *, only: Collection[str] = (), outgoing: tuple[str, int] | None = None
) -> list[Check]:
    """The checks, in the order of what depends on what: all, or those that are named in *only*, of which one that
    nothing here uses is skipped. With *outgoing*, a host and its port, it is tried whether mail can go out to there.
    """

    def wanted(*names: str) -> bool:
        return not only or any(within(name, one) for name in names for one in only)

    try:
        settings = call.settings()
    except SettingsError as error:
        found = failed("configuration", "; ".join(error.problems), "Correct what is named; postroom config check.")
        rest = [skipped(name, "the configuration cannot be used") for name in NAMES[1:]]
        return [found, *(one for one in rest if wanted(one.name))]
    checks = [configuration(settings, call.config_path), data_dir(settings), secrets(settings, call)]
    if wanted(*_IN_DATABASE):
        checks += await database(settings, call)
    if wanted(RELAY, DIRECT):
        checks += await outbound(settings, outgoing)
    if wanted(*(f"port.{label}" for label in LABELS)):
        checks += await asyncio.to_thread(ports, settings)
    now = datetime.now(UTC)
    checks += [tls(settings, now), dns(settings), security_txt(settings, now)]
    checks = [one for one in checks if wanted(one.name)]
    unused = [name for name in NAMES if name in only and all(one.name != name for one in checks)]
    return [*checks, *(skipped(name, "nothing here uses it") for name in unused)]


def within(name: str, asked: str) -> bool:
    """Whether the check is meant by what was asked for: its name, or the beginning of it before a dot."""
    return name == asked or name.startswith(f"{asked}.")


def configuration(settings: Settings, path: Path | None) -> Check:
    """That it can be read is proven; left are variables that nobody will hear."""
    name = "configuration"
    if settings.ignored_environment:
        ignored = ", ".join(settings.ignored_environment)
        return warned(name, f"in the environment, but no settings: {ignored}", "Correct their names, or unset them.")
    return passed(name, "defaults and environment" if path is None else f"read from {path}")


def data_dir(settings: Settings) -> Check:
    """There, private, writable, with room left."""
    name, path = "data_dir", settings.server.data_dir
    try:
        info = path.stat()
    except FileNotFoundError:
        return warned(name, f"{path} is not there yet", "postroom serve makes it; check --data-dir if it should be.")
    except OSError as error:
        return failed(name, f"{path}: {error.strerror}", "Let the user that runs Postroom reach it.")
    if not stat.S_ISDIR(info.st_mode):
        return failed(name, f"{path} is not a directory", "Move it away, or choose another data directory.")
    if not os.access(path, os.W_OK | os.X_OK):
        return failed(name, f"{path} cannot be written", f"chown it to user {os.geteuid()}.")
    usage = shutil.disk_usage(path)
    room = f"{usage.free / 1024**3:.1f} GiB free"
    if usage.free < LOW_DISK_BYTES or usage.free < usage.total * LOW_DISK_SHARE:
        return warned(name, f"{path}: {room}", "Make room, or move the data to a larger disk.")
    if stat.S_IMODE(info.st_mode) & 0o022:
        return warned(name, f"{path} can be written by others", f"chmod go-w {path}")
    return passed(name, f"{path}, {room}")


def secrets(settings: Settings, call: Invocation) -> Check:
    """All there, of the right form, and closed to others."""
    if not is_set_up(settings):
        return skipped("secrets", "made at the first start")
    try:
        load_secrets(settings.server.data_dir, call.environ)
    except SettingsError as error:
        fix = "Put back the secrets file of this deployment: without it keys and sessions are void."
        return failed("secrets", "; ".join(error.problems), fix)
    return passed("secrets", "complete")


async def database(settings: Settings, call: Invocation) -> list[Check]:
    """Reachable, of the schema of this program, and of the mail store beside it; then what it says of sending."""
    names = _IN_DATABASE
    if not is_set_up(settings):
        return [skipped(name, "nothing is set up here yet") for name in names]
    try:
        async with asyncio.timeout(TIMEOUT * 4), _reached(settings) as reached:
            found = [passed("database", await _version(reached))]
            found.append(await _migrations(reached))
            if found[-1].status is Status.FAIL:
                return [*found, *(skipped(name, "the schema cannot be read") for name in names[2:])]
            found.append(await _storage(settings, reached))
            return [*found, *await _sending(settings, call, reached)]
    except (DatabaseError, CliError, OSError, TimeoutError) as error:
        message = str(error) or type(error).__name__
        fix = "Start the database, or correct POSTROOM_DATABASE_URL."
        return [failed("database", message, fix), *(skipped(name, "no database") for name in names[1:])]


async def _sending(settings: Settings, call: Invocation, reached: Reached) -> list[Check]:
    """Queue and keys."""
    async with Database(reached.url, min_size=0, max_size=2) as pool:
        async with pool.acquire() as conn:
            found = await queue(conn, datetime.now(UTC))
        try:
            held = load_secrets(settings.server.data_dir, call.environ)
        except SettingsError:
            rest = "the secrets cannot be used"
            return [skipped(SEALED, rest), *found, skipped("sending.domains", rest)]
        keyring = Keyring(held.master_key, held.other_master_key)
        return [await sealed(pool, keyring), *found, await domains(DkimKeys(pool, keyring, SystemClock()))]


async def sealed(pool: Database, keyring: Keyring) -> Check:
    """Everything that is stored sealed opens, and all of it is under the active master key."""
    kinds: Counter[str | None] = Counter()
    for found in (await standing(pool)).values():
        kinds.update(found)
    broken, is_all = await _broken(pool, keyring)
    strange = sorted(kid for kid in kinds if kid is not None and kid not in keyring.kids)
    wrong: list[tuple[str, str]] = []
    if strange:
        count = sum(kinds[kid] for kid in strange)
        fix = "Put the key that is named into the free slot, then postroom secrets rotate-master --resume."
        wrong.append((f"{count} values are under master keys that are not here: {', '.join(strange)}", fix))
    if broken:
        columns = ", ".join(f"{column}: {count}" for column, count in sorted(broken.items()))
        detail = f"{sum(broken.values())} values are broken, and open with no key ({columns})"
        wrong.append((detail, "Put their rows back from a backup, or make anew what they hold."))
    if wrong:
        return failed(SEALED, "; ".join(detail for detail, _ in wrong), " ".join(fix for _, fix in wrong))
    left = sum(count for kid, count in kinds.items() if kid != keyring.active)
    if left:
        fix = "The worker goes on by itself; postroom secrets rotate-master --resume does it at once."
        return warned(SEALED, f"{left} values are to be sealed anew", fix)
    if not is_all:
        detail = f"not all of {sum(kinds.values())} values could be opened in {LOOK:.0f} s; those that were do open"
        return warned(SEALED, detail, "postroom secrets status opens all of them, however long it takes.")
    return passed(SEALED, f"{sum(kinds.values())} values, all under the active master key")


async def _broken(pool: Database, keyring: Keyring) -> tuple[Counter[str], bool]:
    """How many values of which column do not open, and whether all were looked at."""
    found: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    until = loop.time() + LOOK
    async for page in look(pool, keyring):
        if page.broken:
            found[page.column.name] += page.broken
        if loop.time() >= until:
            return found, False
    return found, True


@asynccontextmanager
async def _reached(settings: Settings) -> AsyncIterator[Reached]:
    async with reach(settings) as reached:
        yield reached


async def _version(reached: Reached) -> str:
    connection = await ConnectionTarget(reached.url).connect()
    try:
        version = await connection.fetchval("SHOW server_version", timeout=TIMEOUT)
    finally:
        await connection.close(timeout=5)
    return f"PostgreSQL {str(version).split()[0]}, {reached.access.value}"


async def _migrations(reached: Reached) -> Check:
    name = "migrations"
    try:
        status = await Migrator(ConnectionTarget(reached.url)).status()
    except DatabaseError as error:
        return failed(name, str(error), "Install the Postroom that this database was used with last.")
    if status.pending:
        pending = ", ".join(f"{one.version:04}_{one.name}" for one in status.pending)
        return failed(name, f"pending: {pending}", "Run postroom migrate.")
    if status.ahead:
        return warned(name, "the schema is of the next release", "Upgrade this node, too.")
    return passed(name, f"schema {max(status.applied):04}")


async def _storage(settings: Settings, reached: Reached) -> Check:
    """The mail store carries the mark of this database (B5)."""
    name = "storage"
    connection = await ConnectionTarget(reached.url).connect()
    try:
        row = await connection.fetchrow("SELECT store_id, platform_domain FROM deployment", timeout=TIMEOUT)
    finally:
        await connection.close(timeout=5)
    if row is None:
        return skipped(name, "marked at the first start")
    if row["platform_domain"] != settings.platform_domain:
        detail = f"the database is of {row['platform_domain']}, the configuration of {settings.platform_domain}"
        return failed(name, detail, "Set platform_domain back, or use the database of this deployment.")
    store = MaildirStore(settings.server.data_dir)
    try:
        await store.check_marker(row["store_id"])
    except MarkerMismatch as error:
        return failed(
            name,
            f"the mail store is not the one of this database ({error.reason})",
            "Use the data directory and the database that belong together.",
        )
    except StorageError as error:
        return failed(name, f"the mail store cannot be used ({error.reason})", "Look at the disk and its permissions.")
    finally:
        await store.close()
    return passed(name, "the mail store belongs to this database")


def tls(settings: Settings, now: datetime) -> Check:
    """The certificate is there, fits its key, and is good for a while (D23)."""
    name, cert, key = "tls", settings.tls.cert_path, settings.tls.key_path
    fix = "Set tls.cert_path and tls.key_path to a certificate that clients trust."
    if cert is None or key is None:
        return warned(name, "a self-signed certificate is used: clients and senders cannot verify this server", fix)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        found = x509.load_pem_x509_certificate(cert.read_bytes()[:MAX_CERTIFICATE])
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
        return failed(name, f"{cert} cannot be used: {reason}", "Correct the paths, or renew the certificate.")
    days = (found.not_valid_after_utc - now).days
    if days <= EXPIRY_DAYS:
        return failed(name, f"{cert} ends on {found.not_valid_after_utc:%Y-%m-%d}", "Renew it.")
    if found.issuer == found.subject:
        return warned(name, f"{cert} is self-signed", fix)
    wanted = settings.server.hostname
    if not any(_covers(pattern, wanted) for pattern in _names(found)):
        return warned(name, f"{cert} does not name {wanted}", f"Use a certificate for {wanted}.")
    return passed(name, f"{cert}, valid for {days} days")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [name.lower() for name in names.get_values_for_type(x509.DNSName)]


def _covers(pattern: str, name: str) -> bool:
    """RFC 9525 §6.3: a wildcard stands for the whole first label."""
    return pattern == name or (pattern.startswith("*.") and pattern[2:] == name.partition(".")[2])


def dns(settings: Settings) -> Check:
    """Names that the world could look up. Whether it finds the right records there is not asked."""
    name = "dns"
    wanted = {
        "server.hostname": settings.server.hostname,
        "platform_domain": settings.platform_domain,
        "api_host": settings.api_host,
        **{f"mx_hosts[{at}]": host for at, host in enumerate(settings.mx_hosts)},
    }
    private = [f"{key} = {value}" for key, value in wanted.items() if _is_private(value)]
    if not private:
        return passed(name, f"{settings.server.hostname} for {settings.platform_domain}")
    detail = f"cannot be reached from outside: {', '.join(private)}"
    fix = "Set names that are registered in DNS."
    return (warned if settings.env is Environment.LOCAL else failed)(name, detail, fix)


def security_txt(settings: Settings, now: datetime) -> Check:
    """Who finds a fault is told where to (security-privacy A13), by a file that is not too old (RFC 9116 §2.5.5)."""
    name = "security_txt"
    text = SecurityText.of(settings.security_contact, settings.api_host)
    if text is None:
        return warned(name, "nobody is told where to report faults", "Set security_contact to a mailbox that is read.")
    days = (text.expires - now.date()).days
    if days <= SECURITY_DAYS:
        return failed(name, f"ends on {text.expires.isoformat()}", "Install a newer version of Postroom.")
    return passed(name, f"{text.contact}, valid for {days} days")


def _is_private(host: str) -> bool:
    head, dot, tld = host.rpartition(".")
    reserved = tld in _PRIVATE_TLDS or host in ("example.com", "example.net", "example.org")
    return not dot or not head or tld.isdigit() or reserved or host.endswith((".example.com", ".example.net"))
