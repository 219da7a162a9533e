"""Who plays in the demo, made once and found again: a tenant, a person, an agent, a key."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Final

from postroom.accounts.keys import NewKey
from postroom.accounts.models import NewPerson, NewTenant, Tenant
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY, GrantRole, Level, Permission
from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.demo.place import Agent, Cast, Known, Person
from postroom.directory.models import Identity, IdentityKind, NewIdentity

SLUG: Final = "demo"
PERSON: Final = NewIdentity("ada", "Ada Example", IdentityKind.PERSON, client_id="postroom-demo-person")
AGENT: Final = NewIdentity(
    "scout",
    "Scout, the agent",
    IdentityKind.AGENT,
    purpose="Answers customers",
    client_id="postroom-demo-agent",
    # Whoever sends has somebody to answer for it.
    owner_name="Ada Example",
    owner_email="ada@example.com",
)
KEY_NAME: Final = "demo"
AGENT_KEY_NAME: Final = "demo, the agent's mail program"
AGENT_MAY: Final = (Permission.MESSAGES_READ, Permission.MESSAGES_SEND, Permission.MESSAGES_WRITE)
_PASSWORD_BYTES: Final = 12
_MAX_KEYS: Final = 100


async def seed(core: Core, known: Known) -> tuple[Cast, datetime]:
    """The cast, and when the demo was first made. The password stays that of *known*, the keys
    while they are good."""
    tenant = await _tenant(core)
    person, _ = await core.identities.create(tenant.id, PERSON)
    agent, _ = await core.identities.create(tenant.id, AGENT)
    password = await _password(core, tenant, person, known.password)
    everything = tuple(sorted(one.value for one in MAY_HOLD[Level.TENANT] - OWNER_ONLY))
    key = await _key(core, NewKey(KEY_NAME, Level.TENANT, everything, tenant.id), known.api_key)
    permissions = tuple(sorted(one.value for one in AGENT_MAY))
    new = NewKey(AGENT_KEY_NAME, Level.IDENTITY, permissions, tenant.id, agent.id)
    agent_key = await _key(core, new, known.agent_key)
    cast = Cast(
        tenant.public_id,
        key,
        Person(person.primary.address, password, person.public_id),
        Agent(agent.primary.address, agent.public_id, agent_key),
    )
    return cast, tenant.created_at


async def _tenant(core: Core) -> Tenant:
    try:
        return await core.tenants.get_by_slug(SLUG)
    except PostroomError as error:
        if error.code != "tenant_not_found":
            raise
    return await core.tenants.create(NewTenant(slug=SLUG, name="Demo", is_default=True))


async def _password(core: Core, tenant: Tenant, identity: Identity, known: str | None) -> str:
    """The password of the mailbox's owner, whom this makes when there is none."""
    grants = await core.people.grants(tenant.id, mailbox_id=identity.id)
    owners = [grant.person_public_id for grant in grants if grant.role is GrantRole.OWNER]
    password = known or secrets.token_urlsafe(_PASSWORD_BYTES)
    if owners:
        # Set also when it is known: somebody may have changed it since, and the record has to be true.
        await core.people.set_password(owners[0], password)
        return password
    made = await core.people.create(NewPerson(identity.display_name, password=password))
    await core.people.grant(tenant.id, identity.public_id, made.public_id, GrantRole.OWNER, by_operator=True)
    return password


async def _key(core: Core, new: NewKey, known: str | None) -> str:
    """The secret of the key: the known one while it is good. Earlier ones of its name, which nobody has, go."""
    if known is not None:
        try:
            await core.verifier.verify(known)
            return known
        except PostroomError:
            pass
    for old in await core.keys.page(None, tenant_id=new.tenant_id, limit=_MAX_KEYS):
        if old.name == new.name and old.revoked_at is None:
            await core.keys.revoke(None, old.public_id)
    _, text = await core.keys.create(None, new)
    return text
