"""`postroom message`: many messages of a mailbox at once, as over the API (decisions E)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from postroom.app import Core
from postroom.base.ids import is_id
from postroom.cli.arguments import find_identity
from postroom.cli.failures import usage
from postroom.cli.frame import Yes, command, confirm
from postroom.cli.invocation import Invocation
from postroom.cli.reach import run
from postroom.cli.shapes import Document
from postroom.mailbox import batch, folders
from postroom.mailbox.batch import Edit, FindFolder, Named, Step
from postroom.mailbox.models import Folder, MailboxRef
from postroom.mailbox.rules import flag_word
from postroom.mailbox.writing import MailboxWrite

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Messages of a mailbox: moved, copied, flagged.")

MAX_IDS: Final = 500
"""What one transaction touches at the most, as over the API (B14)."""

MailboxArgument = Annotated[str, typer.Argument(metavar="ADDRESS|ID", help="The mailbox, or the identity's id.")]
FolderArgument = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder's whole path.")]
MessagesArgument = Annotated[list[str], typer.Argument(metavar="MESSAGE...", help="Messages of the mailbox (msg_…).")]
WordsOption = list[str] | None


@command(app)
def move(call: Invocation, named: MailboxArgument, folder: FolderArgument, messages: MessagesArgument) -> None:
    """Have messages stand in a folder and nowhere else."""
    _run(call, named, batch.move(_named(messages), _finder(folder)))


@command(app)
def copy(call: Invocation, named: MailboxArgument, folder: FolderArgument, messages: MessagesArgument) -> None:
    """Have messages stand in a folder also."""
    _run(call, named, batch.copy(_named(messages), _finder(folder)))


@command(app)
def flag(
    call: Invocation,
    named: MailboxArgument,
    messages: MessagesArgument,
    add: Annotated[
        WordsOption, typer.Option("--add", metavar="WORD", help="A flag ($seen, $flagged) or label; may be repeated.")
    ] = None,
    remove: Annotated[WordsOption, typer.Option("--remove", metavar="WORD", help="Likewise, to be taken off.")] = None,
) -> None:
    """Change flags and labels of messages, wherever they stand."""
    if not add and not remove:
        raise usage("there is nothing to change", "Name words with --add and --remove.")
    more, less = (frozenset(map(flag_word, words or ())) for words in (add, remove))
    _run(call, named, batch.edit(_named(messages), Edit(more, less)))


@command(app)
def expunge(call: Invocation, named: MailboxArgument, messages: MessagesArgument, yes: Yes = False) -> None:
    """Remove messages for good, wherever they stand; those that are still to be sent stay."""
    confirm(call, yes, "They are gone then. Remove them?")
    _run(call, named, batch.remove(_named(messages)))


def _named(messages: list[str]) -> Named:
    for one in messages:
        if not is_id("msg_", one):
            raise usage(f"{one!r} is not the id of a message (msg_…)")
    if len(messages) > MAX_IDS:
        raise usage(f"these are more than {MAX_IDS} messages", "Name some of them at a time.")
    return Named(list(dict.fromkeys(messages)), sees_hidden=True)


def _finder(name: str) -> FindFolder:
    async def find(write: MailboxWrite) -> Folder:
        return await folders.by_name(write.conn, write.ref, name)

    return find


def _run(call: Invocation, named: str, step: Step) -> None:
    async def work(core: Core) -> list[Document]:
        identity = await find_identity(core, named)
        outcome = await core.mailboxes.batch(MailboxRef(identity.tenant_id, identity.id), step)
        return [{"id": message, "result": result.value} for message, result in outcome.results.items()]

    call.output.listing(run(call, work), ("id", "result"), next_cursor=None)
