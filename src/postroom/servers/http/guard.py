"""The checks before a route runs, in the order of rest-api §2.3 and security-privacy A4.2.

Route and method were matched before; then key → permission → level → switches → owner within scope → rate limit →
body. What is out of scope answers exactly as what does not exist. Schema, idempotency, policy and state are the
route's.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.accounts.audit import Entry, actor_of, record
from postroom.accounts.models import PersonSession, Principal, PrincipalKind, Tenant
from postroom.accounts.permissions import Level
from postroom.accounts.rates import Bucket as RateBucket
from postroom.accounts.service.keys import bearer
from postroom.accounts.tokens import is_session
from postroom.base.errors import PostroomError
from postroom.base.ids import is_id
from postroom.directory import Identity, IdentityStatus
from postroom.directory.sending_controls import Switch
from postroom.outbound.ledger import check_key
from postroom.servers.http import call as calls
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.cursors import CursorKeys
from postroom.servers.http.exchange import exchange_of
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Bucket, Handler, Idempotency, Reach, Rule

READ_ONLY_SECONDS: Final = 300
"""After which whoever was refused may ask again."""
MAX_PUBLIC_BODY: Final = 64 * 1024
"""Octets of a body from somebody who has not said who they are."""
_IPV6_NETWORK_BITS: Final = 64
_GONE: Final = frozenset({IdentityStatus.DELETING, IdentityStatus.DELETED})
_PATH_IDS: Final = {
    "message_id": ("msg_", "message_not_found"),
    "thread_id": ("thr_", "thread_not_found"),
    "attachment_id": ("att_", "attachment_not_found"),
    "folder_id": ("fld_", "folder_not_found"),
    "address_id": ("adr_", "address_not_found"),
    "alias_id": ("als_", "address_not_found"),
    "partner_id": ("ptn_", "partner_not_found"),
    "person_id": ("usr_", "person_not_found"),
    "user_id": ("usr_", "member_not_found"),
    "invitation_id": ("inv_", "invitation_not_found"),
    "dlq_id": ("dlq_", "dlq_item_not_found"),
    "session_id": ("ses_", "session_not_found"),
    "device_id": ("dev_", "device_not_found"),
    "app_password_id": ("apw_", "app_password_not_found"),
    "key_id": ("key_", "key_not_found"),
}


class Guard:
    """Applies rules. One per application."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    async def __call__(self, rule: Rule, request: Request, inner: Handler) -> Response:
        exchange = exchange_of(request.scope)
        exchange.operation = rule.operation
        if rule.is_public:
            await self._check_switches(rule)
            if rule.body:
                request = JsonRequest(request.scope, request.receive)
                await request.load(MAX_PUBLIC_BODY)
            return await inner(request)
        principal = await self._authenticate(rule, request)
        exchange.principal = principal
        exchange.rate_limit = _own_bucket(principal).limit
        if not _is_implicit(rule, principal, request.path_params):
            calls.require(principal, rule.permissions)
        _check_level(rule, principal, request.path_params)
        if principal.level is not Level.PLATFORM:
            await self._check_switches(rule)
        tenant, identity = await self._owner(rule, principal, request.path_params)
        self._count(rule, principal, request, identity)
        _check_ids(request.path_params)
        _check_key(rule, request)
        incoming = JsonRequest(request.scope, request.receive)
        if rule.body:
            await incoming.load(self._services.max_body, required=rule.body_required)
        keys = await self._cursor_keys(request)
        calls.attach(incoming, calls.Call(self._services, rule, incoming, principal, tenant, identity, keys))
        answer = await inner(incoming)
        if rule.reads_mail and _is_noted(principal) and identity is not None:
            await self._note_reading(rule, principal, incoming, identity)
        return answer

    async def _note_reading(self, rule: Rule, principal: Principal, request: Request, identity: Identity) -> None:
        """Before a word of the mail leaves; nobody reads what cannot be noted. Raises `unavailable`."""
        kind, target = "identity", identity.public_id
        for name in ("attachment_id", "message_id", "thread_id"):
            if name in request.path_params:
                kind, target = name.removesuffix("_id"), request.path_params[name]
                break
        entry = Entry("mail.read", kind, target, identity.tenant_id, {"route": f"{rule.method} {rule.path}"})
        by = actor_of(principal, exchange_of(request.scope).request_id)
        try:
            async with self._services.database.transaction() as conn:
                await record(conn, self._services.ids, self._services.clock.now(), by, entry)
        except Exception as error:
            raise PostroomError("unavailable", retry_after=1) from error

    async def _cursor_keys(self, request: Request) -> CursorKeys | None:
        """For what may be a list; None when the key cannot be opened, which is no matter to what lists nothing."""
        if request.method != "GET":
            return None
        try:
            return await self._services.cursor_keys.keys_for(request.query_params.get("cursor"))
        except PostroomError:
            return None

    async def again(self, call: calls.Call) -> None:
        """Ask once more whether the caller may do what they were let in for some time ago. Raises as it did then."""
        principal = await self._authenticate(call.rule, call.request)
        calls.require(principal, call.rule.permissions)

    async def _check_switches(self, rule: Rule) -> None:
        """Raises `unavailable` for what changes something while `read_only` is on (J33)."""
        switches = self._services.switches
        if rule.changes and switches is not None and await switches.is_on(Switch.READ_ONLY):
            raise PostroomError("unavailable", details={"reason": "read_only"}, retry_after=READ_ONLY_SECONDS)

    async def _authenticate(self, rule: Rule, request: Request) -> Principal:
        rates = self._services.rates
        network = self._network(request)
        if network is not None:
            failures = rates.peek(RateBucket.AUTH_FAILURES, network)
            if not failures.allowed:
                raise PostroomError("rate_limited", retry_after=failures.reset_after)
        token = bearer(request.headers.get("authorization"))
        try:
            if self._services.account is not None and token is not None and is_session(token):
                session = await self._services.account.sessions.verify(token)
            else:
                principal = await self._services.verifier.verify(token)
                if rule.reach is Reach.PERSON:
                    raise PostroomError("permission_denied", details={"reason": "person_required"})
                return principal
        except PostroomError as error:
            if network is not None and error.code == "unauthenticated":
                rates.hit(RateBucket.AUTH_FAILURES, network)
            raise
        return await self._of_session(rule, session, request.path_params)

    async def _of_session(self, rule: Rule, session: PersonSession, path: dict[str, str]) -> Principal:
        """Who a person is where the path leads (decisions E): themselves, somebody with a grant on the mailbox, a
        member of the tenant, or who runs the deployment. Elsewhere looks like nowhere; lists of identities are of those
        that are granted to them.
        """
        assert self._services.account is not None
        sessions = self._services.account.sessions
        if rule.reach is Reach.PERSON:
            return sessions.as_person(session)
        if rule.reach is Reach.IDENTITY_PATH:
            found = await sessions.at_identity(session, path["identity_id"])
            if found is None:
                raise PostroomError("identity_not_found")
            return found
        operator = sessions.as_operator(session)
        if rule.reach is Reach.TENANT_FILTER:
            if operator is not None and rule.permissions <= operator.permissions:
                return operator  # of all tenants; what else is listed is as for anybody
            return sessions.as_grantee(session)
        if rule.reach is Reach.TENANT_PATH:
            suffices = operator is not None and rule.permissions <= operator.permissions
            if operator is not None and suffices and operator.level in rule.levels:
                return operator  # who may do what members may not now (J33)
            found = await sessions.at_tenant(session, path["tenant_id"])
            if operator is not None and (found is None or not rule.permissions <= found.permissions):
                return operator
            if found is None:
                raise PostroomError("tenant_not_found")
            return found
        about_itself = rule.reach is Reach.ANY_KEY and not rule.permissions
        if operator is not None and not about_itself:
            return operator
        raise PostroomError("scope_denied")

    def _network(self, request: Request) -> str | None:
        """A pseudonym of the client's network: an IPv4 address, a /64 of IPv6."""
        if request.client is None:
            return None
        host = self._services.client(request.client.host, request.headers.get("x-forwarded-for"))
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, IPv6Address):
            if address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            else:
                number = int(address) >> (128 - _IPV6_NETWORK_BITS)
                return hashlib.sha256(b"6" + number.to_bytes(8, "big")).hexdigest()[:32]
        return hashlib.sha256(b"4" + address.packed).hexdigest()[:32]

    async def _owner(
        self, rule: Rule, principal: Principal, path: dict[str, str]
    ) -> tuple[Tenant | None, Identity | None]:
        match rule.reach:
            case Reach.TENANT_PATH:
                of_identities = Level.IDENTITY in rule.levels
                return await self.tenant(principal, path["tenant_id"], of_identities=of_identities), None
            case Reach.IDENTITY_PATH:
                identity = await self.identity(principal, path["identity_id"])
                if not rule.even_gone and identity.status in _GONE:
                    raise PostroomError("identity_not_found")
                return None, identity
        return None, None

    async def tenant(self, principal: Principal, public_id: str, *, of_identities: bool = False) -> Tenant:
        """A tenant within the principal's reach; with `of_identities` their own is in reach of keys of identities, too.
        Raises `tenant_not_found`.
        """
        if not is_id("ten_", public_id):
            raise PostroomError("tenant_not_found")
        tenant = await self._services.tenants.get(public_id)
        own = of_identities and principal.level is Level.IDENTITY and principal.tenant_id == tenant.id
        if not (own or tenant.is_reached_by(principal)) or not _same_mode(principal, tenant):
            raise PostroomError("tenant_not_found")
        return tenant

    async def identity(self, principal: Principal, public_id: str) -> Identity:
        """An identity within reach, in any state. Raises `identity_not_found`."""
        if not is_id("idn_", public_id):
            raise PostroomError("identity_not_found")
        return await self._services.identities.get(principal.scope, public_id)

    def _count(self, rule: Rule, principal: Principal, request: Request, identity: Identity | None) -> None:
        if rule.bucket is Bucket.NONE:
            return
        rates = self._services.rates
        decision = rates.hit_request(principal)
        if decision.allowed and rule.bucket is Bucket.SEND and identity is not None:
            # Counted before the key is looked up, so that repetitions count too (outbound §2.2).
            sends = rates.hit(RateBucket.SEND, identity.public_id)
            decision = decision if sends.allowed else sends
        if decision.allowed and rule.bucket is Bucket.PARTNER and principal.partner_public_id is not None:
            made = rates.hit(RateBucket.PARTNER_CREATE, principal.partner_public_id)
            decision = decision if made.allowed else made
        exchange_of(request.scope).rate_limit = decision.limit
        if not decision.allowed:
            details = {"bucket": decision.bucket.label, "retry_after": decision.reset_after}
            raise PostroomError("rate_limited", details=details, retry_after=decision.reset_after)


def _check_ids(path: dict[str, str]) -> None:
    """Raises the resource's own `…_not_found` for an id that cannot be one (rest-api §2.2)."""
    for name, (prefix, code) in _PATH_IDS.items():
        if name in path and not is_id(prefix, path[name]):
            raise PostroomError(code)


def _check_key(rule: Rule, request: Request) -> None:
    """Raises `idempotency_key_required` before the body is read (outbound §2.2). Whether a request is a dry run, which
    needs none, is known to the route when it has read the query."""
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        # Which of them is meant, a proxy on the way may see otherwise than we.
        raise PostroomError("invalid_idempotency_key")
    if rule.idempotency is Idempotency.REQUIRED and "dry_run" not in request.query_params:
        if not keys:
            raise PostroomError("idempotency_key_required")
        check_key(keys[0])


def _is_noted(principal: Principal) -> bool:
    return principal.kind is PrincipalKind.KEY and principal.level in (Level.PLATFORM, Level.PARTNER)


def _own_bucket(principal: Principal) -> RateBucket:
    return RateBucket.API if principal.kind is PrincipalKind.KEY else RateBucket.SESSION


def _same_mode(principal: Principal, tenant: Tenant) -> bool:
    """A live key does not act on a test tenant, nor the reverse (L4); platform and partner keys act on both."""
    return principal.level in (Level.PLATFORM, Level.PARTNER) or principal.mode is None or principal.mode is tenant.mode


def _is_implicit(rule: Rule, principal: Principal, path: dict[str, str]) -> bool:
    """Whether the key needs no permission, as the tenant in the path is its own."""
    return (
        principal.kind is PrincipalKind.KEY
        and principal.level in rule.implicit_for
        and path.get("tenant_id") == principal.tenant_public_id
    )


def _check_level(rule: Rule, principal: Principal, path: dict[str, str]) -> None:
    """Raises `scope_denied` for a route above the key's level on its own tenant (F3).

    On another tenant the answer is that of a missing one, from where the owner is looked up.
    """
    if principal.level in rule.levels or rule.reach is Reach.PERSON:
        return
    of_tenant = principal.level in (Level.TENANT, Level.IDENTITY)
    if of_tenant and rule.reach is Reach.TENANT_PATH and path.get("tenant_id") != principal.tenant_public_id:
        return
    raise PostroomError("scope_denied")
