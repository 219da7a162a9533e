"""Who is told of an event by a stream, against who finds it in the list, and against the rules in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from postroom.accounts import Level
from postroom.accounts.models import PLATFORM_SCOPE, Scope, partner_scope, tenant_scope
from postroom.events.reading import Told, Wanted, after, before, following, hears, newest
from tests.events.hooks import Room

pytestmark = pytest.mark.events_made_up

MAIL, MADE, DISABLED = "message.received", "identity.created", "webhook.disabled"
ALL = frozenset({MAIL, MADE, DISABLED})


@dataclass(frozen=True, slots=True)
class Happened:
    """Whose an event is: keys, of which a partner's own endpoint has no tenant."""

    type: str
    tenant: int | None
    partner: int | None
    identity: int | None
    is_system: bool


def may_hear(scope: Scope, one: Happened) -> bool:
    """events-webhooks-errors §6, A4.2, A15: as one would say it."""
    if scope.level is Level.PLATFORM:
        return True
    if one.is_system:
        return False
    if scope.level is Level.PARTNER:
        return one.partner == scope.partner_id
    if scope.level is Level.TENANT:
        return one.tenant == scope.tenant_id
    return (one.tenant, one.identity) == (scope.tenant_id, scope.identity_id)


@pytest.mark.covers("edge:J15", "edge:A15", "security-privacy:A4.2", "SEC-1")
async def test_a_stream_tells_what_the_list_shows_and_no_more(room: Room) -> None:
    """Every reach, with everything that can be asked for, of every kind of event that there is."""
    one, _ = await room.partner("one")
    two, _ = await room.partner("two")
    whose = {await room.tenant(slug, of): of for slug, of in (("aa", one), ("bb", one), ("cc", two), ("dd", None))}
    boxes = {key: [await room.identity(key), await room.identity(key)] for key in whose}
    system, about = await room.identity(next(iter(whose)), is_system=True), room.ids.new("whk_")
    happened: dict[str, Happened] = {}
    for key, partner in whose.items():
        happened[await room.event(key, MADE)] = Happened(MADE, key, partner, None, False)
        happened[await room.event(key, DISABLED, about=about)] = Happened(DISABLED, key, partner, None, False)
        for box in (*boxes[key], system) if key == next(iter(whose)) else boxes[key]:
            happened[await room.event(key, MAIL, identity=box)] = Happened(MAIL, key, partner, box[0], box is system)
    for own in (one, two, None):
        happened[await room.event(None, DISABLED, partner=own, about=about)] = Happened(
            DISABLED, None, own, None, False
        )
    scopes = [PLATFORM_SCOPE, partner_scope(one), partner_scope(two)]
    scopes += [tenant_scope(key) for key in whose]
    scopes += [Scope(Level.IDENTITY, key, box[0]) for key in whose for box in boxes[key]]
    identities: dict[str | None, int | None] = {None: None, "idn_nobody": None}
    identities |= {box[1]: box[0] for of in boxes.values() for box in of}
    async with room.db.acquire() as conn:
        last = await newest(conn)
        everything = await following(conn, 0, last, 1000)
        assert {told.public_id for told in everything} == set(happened)
        asked = product(scopes, (None, *whose), identities, (ALL, frozenset({MAIL}), frozenset({DISABLED})))
        for scope, tenant, identity, types in asked:
            wanted = Wanted(scope, types, tenant, identity)
            heard = [told for told in everything if hears(wanted, told, identities[identity])]
            case = (scope, tenant, identity, sorted(types))
            assert _ids(await before(conn, wanted, None, 100)) == _ids(heard)[::-1], case
            assert _ids(await after(conn, wanted, 0, last, 100)) == _ids(heard), case
            assert _ids(heard) == [
                told.public_id
                for told in everything
                if _is_asked_for(happened[told.public_id], types, tenant, identity, identities[identity])
                and may_hear(scope, happened[told.public_id])
            ], case


def _is_asked_for(one: Happened, types: frozenset[str], tenant: int | None, name: str | None, key: int | None) -> bool:
    of_tenant, of_identity = (
        tenant is None or one.tenant == tenant,
        name is None or (key is not None and one.identity == key),
    )
    return one.type in types and of_tenant and of_identity


def _ids(found: list[Told]) -> list[str]:
    return [told.public_id for told in found]
