"""List cursors are signed by keys of the deployment, not by the master key (rest-api §2.4, security-privacy A6.2)."""

from __future__ import annotations

import pytest

from postroom.accounts.signing_keys import Purpose, SigningKeys
from postroom.base.clock import ManualClock
from postroom.base.errors import PostroomError
from postroom.base.sealing import Keyring
from postroom.db import Database
from postroom.servers.http.cursor_ring import CursorRing
from postroom.servers.http.cursors import scope_of, seal, unseal

_SCOPE = scope_of("listThings", {}, {}, "key_1")


@pytest.mark.covers("security-privacy:A6.2")
async def test_a_cursor_outlives_a_rotation_by_a_day(db: Database, clock: ManualClock) -> None:
    here, there = (SigningKeys(db, Keyring(b"m" * 32), clock) for _ in range(2))
    listing, rotating = CursorRing(here), CursorRing(there)
    old = seal(await listing.keys_for(None), _SCOPE, (1, 2), clock.now())
    await there.rotate(Purpose.CURSOR)
    new = seal(await rotating.keys_for(None), _SCOPE, (3, 4), clock.now())
    clock.advance(61)  # a process looks again at most once a minute for a key that it does not know
    for ring in (listing, rotating):
        assert unseal(await ring.keys_for(old), _SCOPE, old, clock.now()) == (1, 2)
        assert unseal(await ring.keys_for(new), _SCOPE, new, clock.now()) == (3, 4)
    await there.rotate(Purpose.CURSOR, revoke_previous=True)
    for cursor in (old, new, "c_", "c", "", "x" * 5000):
        with pytest.raises(PostroomError) as caught:
            unseal(await rotating.keys_for(cursor), _SCOPE, cursor, clock.now())
        assert caught.value.code == "invalid_request"


@pytest.mark.covers("edge:O8", "security-privacy:A6.3")
async def test_a_cursor_outlives_a_new_master_key(db: Database, clock: ManualClock) -> None:
    before = CursorRing(SigningKeys(db, Keyring(b"m" * 32), clock))
    cursor = seal(await before.keys_for(None), _SCOPE, (1, 2), clock.now())
    after = CursorRing(SigningKeys(db, Keyring(b"n" * 32, b"m" * 32), clock))
    assert unseal(await after.keys_for(cursor), _SCOPE, cursor, clock.now()) == (1, 2)
