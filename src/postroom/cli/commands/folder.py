"""`postroom folder`: the folders of a mailbox (mail-server D2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.cli import shapes
from postroom.cli.arguments import DEFAULT_LIMIT, CursorOption, LimitOption, find_identity
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.cli.shapes import Document
from postroom.mailbox.expunge import MessagesInUse
from postroom.mailbox.models import Folder, MailboxRef
from postroom.mailbox.rules import folder_order
from postroom.mailbox.tree import FolderChange

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Folders of a mailbox.")

MailboxArgument = Annotated[str, typer.Argument(metavar="ADDRESS|ID", help="The mailbox, or the identity's id.")]
FolderArgument = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder's whole path, / between its parts.")]


@command(app, "list")
def list_(
    call: Invocation, named: MailboxArgument, limit: LimitOption = DEFAULT_LIMIT, cursor: CursorOption = None
) -> None:
    """List the folders of a mailbox, INBOX first, then by the alphabet."""

    async def work(core: Core, ref: MailboxRef) -> list[Folder]:
        return await core.mailboxes.list_folders(ref)

    listed = _run(call, named, work)
    if cursor is not None:
        listed = [one for one in listed if folder_order(one.name) > folder_order(cursor)]
    shown = listed[:limit]
    call.output.listing(
        [shapes.folder(one) for one in shown],
        ("name", "special_use", "message_count", "unseen_count", "subscribed"),
        next_cursor=shown[-1].name if len(listed) > len(shown) else None,
        essential="name",
    )


@command(app)
def create(call: Invocation, named: MailboxArgument, folder: FolderArgument) -> None:
    """Make a folder, and the ones above it that are missing."""

    async def work(core: Core, ref: MailboxRef) -> Document:
        return shapes.folder(await core.mailboxes.create_folder(ref, folder))

    call.output.result(_run(call, named, work))


@command(app)
def rename(
    call: Invocation,
    named: MailboxArgument,
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The whole path that it is to have.")],
) -> None:
    """Give a folder another path. What is below it goes along."""

    async def work(core: Core, ref: MailboxRef) -> Document:
        found = await core.mailboxes.folder(ref, folder)
        return shapes.folder(await core.mailboxes.change_folder(ref, found.public_id, FolderChange(name)))

    call.output.result(_run(call, named, work))


@command(app)
def delete(
    call: Invocation,
    named: MailboxArgument,
    folder: FolderArgument,
    expunge: Annotated[bool, typer.Option("--expunge", help="Remove what is in it, too, for good.")] = False,
) -> None:
    """Remove a folder that is empty."""

    async def work(core: Core, ref: MailboxRef) -> Document:
        found = await core.mailboxes.folder(ref, folder)
        try:
            await core.mailboxes.delete_folder(ref, found.id, only_empty=not expunge)
        except MessagesInUse:
            raise PostroomError("folder_not_empty", details={"reason": "in_use"}) from None
        return shapes.folder(found)

    gone = _run(call, named, work)
    call.output.result(gone, human=f"{gone['name']} is gone.")


def _run(call: Invocation, named: str, work: Callable[[Core, MailboxRef], Awaitable[T]]) -> T:
    async def inner(core: Core) -> T:
        identity = await find_identity(core, named)
        return await work(core, MailboxRef(identity.tenant_id, identity.id))

    return run(call, inner)
