"""Writing a tenant's policy (rest-api §5.2; security-privacy A3.8; J14, J17, J23–J26): what was asked, whether its
writer may, and what is stored afterwards. Pure.

Rules follow the writer's level, whatever the route. One refused member refuses the whole write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from postroom.accounts.permissions import Level
from postroom.accounts.policy import (
    DEFAULT_POLICY,
    GROUPS,
    MEMBERS,
    Member,
    PolicyClass,
    StoredPolicy,
    TenantPolicy,
    checked,
    copied,
    plain,
    put,
    strictest,
)
from postroom.accounts.text import invalid
from postroom.base.errors import PostroomError

RESET: Final = object()
"""In a patch: the default again."""

Patch = Mapping[str, Any]
"""Values by path."""


class CeilingSource(StrEnum):
    """What bounds a member, in the order in which a tie is told."""

    DEPLOYMENT = "deployment"
    PLATFORM = "platform"
    PARTNER = "partner"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes. `decides`: whether they take the decisions that are people's (A4.5)."""

    level: Level
    decides: bool = True

    def __post_init__(self) -> None:
        if self.level is Level.IDENTITY:
            raise ValueError("an identity writes no policy")


PLATFORM: Final = Writer(Level.PLATFORM)


@dataclass(frozen=True, slots=True)
class Access:
    """What the writer may do with a member. `ceiling`: the loosest value of one that may only be lowered."""

    path: str
    kind: PolicyClass
    writable: bool
    ceiling: Any = None
    source: CeilingSource | None = None
    person_required: bool = False


@dataclass(frozen=True, slots=True)
class Stance:
    """What the deployment says of all policies: what holds where nobody said anything, and whether keys take the
    decisions that are people's (A4.5).
    """

    defaults: TenantPolicy = DEFAULT_POLICY
    keys_decide: bool = True

    def effective(self, stored: StoredPolicy) -> TenantPolicy:
        """What holds for a tenant: the one function that says so."""
        return stored.under(self.defaults)

    def writer(self, level: Level, stored: StoredPolicy, *, is_person: bool = False) -> Writer:
        """A writer of that level to a tenant's policy."""
        return Writer(level, is_person or self.keys_decide or self.effective(stored).quarantine_key_release)

    def access(self, level: Level, stored: StoredPolicy, *, is_person: bool = False) -> list[Access]:
        """What a writer of that level may do with each member, as things stand."""
        writer = self.writer(level, stored, is_person=is_person)
        return [access_to(path, stored, self.defaults, writer) for path in MEMBERS]


@dataclass(frozen=True, slots=True)
class Change:
    """A number or a switch that holds in another way than before, or not."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Written:
    """`stored` is what is to be stored. `paths`: what was written, sorted, also where nothing changed."""

    stored: StoredPolicy
    paths: tuple[str, ...]
    changes: tuple[Change, ...] = field(default=())


def stance_of(default_policy: Mapping[str, Any], *, keys_decide: bool) -> Stance:
    """What the settings say. Raises ValueError, whose words name the member that cannot be so."""
    if not default_policy:
        return Stance(keys_decide=keys_decide)
    try:
        patch = parse(default_policy, "tenants.default_policy.")
        stored = write(StoredPolicy(), DEFAULT_POLICY, patch, PLATFORM).stored
    except PostroomError as error:
        told = (error.details or {}).get("errors", ())
        raise ValueError("; ".join(f"{one['path']} {one['message']}" for one in told)) from None
    return Stance(StoredPolicy(stored.values).under(), keys_decide)


def parse(document: Mapping[str, Any], prefix: str = "") -> Patch:
    """The patch that a document asks for: null is the default again, but where null is a value; null for an object is
    so for each of its members. `prefix` is where the document is in the request.

    Raises `invalid_request` for an empty one, unknown members, and values that are none.
    """
    patch: dict[str, Any] = {}
    for path, value, whole in _asked(document, prefix):
        member = MEMBERS.get(path)
        reset = value is None and (whole or member is None or not member.nullable)
        patch[path] = RESET if reset and member is not None else checked(path, value, prefix)
    if not patch:
        raise invalid(prefix.rstrip("."), "must change something")
    return patch


def _asked(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, bool]]:
    for name, value in document.items():
        if name not in GROUPS:
            # A dotted name is no way to a member of an object.
            yield name.replace(".", " "), value, False
        elif value is None:
            for path in MEMBERS:
                if path.startswith(f"{name}."):
                    yield path, None, True
        elif isinstance(value, Mapping):
            for inner, one in value.items():
                yield f"{name}.{inner}", one, False
        else:
            raise invalid(f"{prefix}{name}", "must be an object or null")


MAX_BYTES: Final = 128 * 1024
"""Of the JSON of what a tenant has set: it is read with the tenant, wherever that is."""


def write(stored: StoredPolicy, defaults: TenantPolicy, patch: Patch, by: Writer) -> Written:
    """What is stored once `by` has written. A value that the platform or the partner gives to a member that others may
    only lower is a ceiling for these; taking it back takes the ceiling away.

    Raises `scope_denied` (`not_writable`, `above_ceiling`) and `permission_denied` (`person_required`), about the first
    refused path in their order, and `invalid_request` for a policy of more than `MAX_BYTES`.
    """
    before = stored.under(defaults)
    written = tuple(sorted(patch))
    for path in written:
        _check(path, patch[path], stored, before, defaults, by)
    values, ceilings = copied(stored.values), _ceilings_of(stored, by)
    for path in written:
        value, member = patch[path], MEMBERS[path]
        put(values, path, None if value is RESET else value, null=member.nullable and value is not RESET)
        if ceilings is not None and member.kind is PolicyClass.LOWER_ONLY:
            put_ceiling(ceilings, path, value)
    platform = ceilings if ceilings is not None and by.level is Level.PLATFORM else stored.platform
    partner = ceilings if ceilings is not None and by.level is Level.PARTNER else stored.partner
    after = StoredPolicy(values, platform, partner)
    if written and len(orjson.dumps(values)) > MAX_BYTES:
        raise invalid(written[0], f"makes the policy larger than {MAX_BYTES} octets of JSON")
    return Written(after, written, tuple(_changes(written, before, after.under(defaults))))


def put_ceiling(ceilings: dict[str, Any], path: str, value: Any) -> None:
    if value is RESET:
        ceilings.pop(path, None)
    else:
        ceilings[path] = value


def _ceilings_of(stored: StoredPolicy, by: Writer) -> dict[str, Any] | None:
    match by.level:
        case Level.PLATFORM:
            return dict(stored.platform)
        case Level.PARTNER:
            return dict(stored.partner)
    return None


def _check(
    path: str, value: Any, stored: StoredPolicy, before: TenantPolicy, defaults: TenantPolicy, by: Writer
) -> None:
    access = access_to(path, stored, defaults, by)
    if not access.writable:
        raise PostroomError("scope_denied", details={"field": path, "reason": "not_writable"})
    member = MEMBERS[path]
    if member.looseness is None:
        return
    # Whoever takes a value back asks for the default.
    wanted = member.looseness(getattr(defaults, member.field) if value is RESET else member.read(value))
    if access.source is not None and wanted > member.looseness(access.ceiling):
        refused = {"ceiling": access.ceiling, "ceiling_source": access.source.value}
        raise PostroomError("scope_denied", details={"field": path, "reason": "above_ceiling", **refused})
    if access.person_required and wanted > member.looseness(getattr(before, member.field)):
        raise PostroomError("permission_denied", details={"field": path, "reason": "person_required"})


def access_to(path: str, stored: StoredPolicy, defaults: TenantPolicy, by: Writer) -> Access:
    """What the writer may do with a member as things stand."""
    member = MEMBERS[path]
    if by.level is Level.PLATFORM:
        return Access(path, member.kind, writable=True)
    match member.kind:
        case PolicyClass.PLATFORM_ONLY:
            return Access(path, member.kind, writable=False)
        case PolicyClass.PARTNER_OR_PLATFORM:
            return Access(path, member.kind, writable=by.level is Level.PARTNER)
        case PolicyClass.LOWER_ONLY:
            ceiling, source = _bound(path, member, stored, defaults, by)
            return Access(path, member.kind, True, ceiling, source)
        case PolicyClass.GUARD:
            required = by.level is Level.TENANT and not by.decides
            return Access(path, member.kind, True, person_required=required)
    return Access(path, member.kind, writable=True)


def _bound(
    path: str, member: Member, stored: StoredPolicy, defaults: TenantPolicy, by: Writer
) -> tuple[Any, CeilingSource]:
    """The strictest of what stands above the writer. A partner is not bound by its own ceiling."""
    bounds = {CeilingSource.DEPLOYMENT: getattr(defaults, member.field)}
    above = {CeilingSource.PLATFORM: stored.platform}
    if by.level is Level.TENANT:
        above[CeilingSource.PARTNER] = stored.partner
    for source, ceilings in above.items():
        ceiling = stored.ceiling(path, ceilings)
        if ceiling is not None:
            bounds[source] = ceiling
    assert member.looseness is not None
    bound = strictest(path, *bounds.values())
    same = member.looseness(bound)
    source = next(one for one, value in bounds.items() if member.looseness(value) == same)
    return bound, source


def _changes(written: tuple[str, ...], before: TenantPolicy, after: TenantPolicy) -> Iterator[Change]:
    for path in written:
        was, now = (plain(getattr(policy, MEMBERS[path].field)) for policy in (before, after))
        if was != now and all(isinstance(value, bool | int | float) for value in (was, now)):
            yield Change(path, was, now)
