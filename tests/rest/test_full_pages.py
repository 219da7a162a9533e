"""Lists of which a client asks for as much as it may."""

from __future__ import annotations

import pytest

from postroom.accounts import MemberRole, NewPerson
from tests.rest.lobby import Lobby

MOST, MORE = 100, 103


@pytest.mark.covers("FR-API-1")
async def test_the_largest_page_tells_of_the_next(lobby: Lobby) -> None:
    """A page of a hundred, of what is more than a hundred, has a cursor."""
    world, tenant = lobby.world, lobby.world.tenant
    for n in range(MORE):
        person = await lobby.people.create(NewPerson(f"P{n}"))
        await lobby.people.put_member(tenant.id, person.public_id, MemberRole.MEMBER)
    async with world.db.acquire() as conn:
        await conn.execute(
            "INSERT INTO identities (tenant_id, public_id, kind, username, username_fold, display_name, created_at,"
            " updated_at) SELECT $1, 'idn_' || lpad(n::text, 26, '0'), 'agent', 'u' || n, 'u' || n, 'U', now(), now()"
            " FROM generate_series(1, $2) AS n",
            *(tenant.id, MORE),
        )
        await conn.execute(
            "INSERT INTO mailboxes (tenant_id, id, identity_public_id, tenant_public_id, is_system, created_at)"
            " SELECT tenant_id, id, public_id, $2, false, now() FROM identities i WHERE tenant_id = $1"
            " AND NOT EXISTS (SELECT FROM mailboxes m WHERE m.id = i.id)",
            *(tenant.id, tenant.public_id),
        )
        await conn.execute(
            "INSERT INTO mailbox_grants (tenant_id, mailbox_id, person_id, role, created_at)"
            " SELECT tenant_id, id, $2, 'read', now() FROM identities WHERE tenant_id = $1 ON CONFLICT DO NOTHING",
            *(tenant.id, lobby.ada.id),
        )
        await conn.execute(
            "INSERT INTO devices (public_id, person_id, device_uid, name, last_seen_at, created_at)"
            " SELECT 'dev_' || lpad(n::text, 26, '0'), $1, 'd' || n, 'D', now(), now()"
            " FROM generate_series(1, $2) AS n",
            *(lobby.ada.id, MORE),
        )
        await conn.execute(
            "INSERT INTO sender_lists (tenant_id, direction, kind, entry, created_at)"
            " SELECT $1, 'send', 'block', 'u' || n || '@example.com', now() FROM generate_series(1, $2) AS n",
            *(tenant.id, MORE),
        )
    token = await lobby.token()
    tenants = f"/v1/tenants/{tenant.public_id}"
    lists = [
        (f"{tenants}/identities", world.key),
        ("/v1/identities", world.key),
        ("/v1/identities", world.platform),
        ("/v1/identities", {"authorization": f"Bearer {token}"}),
        (f"{tenants}/people", world.key),
        (f"{tenants}/lists/send/block", world.key),
        (f"{tenants}/people/{lobby.ada.public_id}/grants", world.key),
        ("/v1/account/mailboxes", {"authorization": f"Bearer {token}"}),
        ("/v1/account/devices", {"authorization": f"Bearer {token}"}),
    ]
    for path, headers in lists:
        first = (await lobby.ask("GET", path, token=headers, limit=MOST)).json()
        assert len(first["data"]) == MOST, path
        rest = (await lobby.ask("GET", path, token=headers, limit=MOST, cursor=first["next_cursor"])).json()
        assert rest["next_cursor"] is None
        assert len(rest["data"]) >= MORE - MOST, path
        assert not {one.get("id", str(one)) for one in first["data"]} & {
            one.get("id", str(one)) for one in rest["data"]
        }
