"""`postroom mail`: sending and answering as an identity, by the same rules as over the API (outbound §2).

The request is the one that the API would get, so that a key repeated here or there is the same send. A server that runs
hands the mail over at once; without one it is due at the next start.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from postroom.app import Core
from postroom.base.errors import PostroomError
from postroom.base.ids import is_id
from postroom.cli.arguments import find_identity
from postroom.cli.failures import usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode
from postroom.cli.reach import run
from postroom.cli.shapes import Document
from postroom.mailbox.models import MailboxRef
from postroom.mailbox.queries import Include
from postroom.outbound import ledger
from postroom.outbound.closing import Closing, Resolution
from postroom.outbound.models import Operation
from postroom.outbound.send_rules import SendRules
from postroom.outbound.submit import Foreseen
from postroom.sending import open_outlet
from postroom.servers.http.failures import violations
from postroom.servers.http.rest.sending import ForwardRequest, ReplyRequest, SendRequest

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Send and answer mail as an identity.")

MAX_OCTETS: Final = SendRules(max_message_bytes=50 * 1024 * 1024).max_composed
"""Of each file that is read, and of all of them: no setting lets a message hold more."""
STDIN: Final = "-"

SenderOption = Annotated[str, typer.Option("--from", metavar="ADDRESS|ID", help="The identity that writes.")]
TextOption = Annotated[str | None, typer.Option("--text", help="The text.")]
TextFileOption = Annotated[
    str | None, typer.Option("--text-file", metavar="FILE|-", help="A file with the text; - is standard input.")
]
HtmlFileOption = Annotated[
    str | None, typer.Option("--html-file", metavar="FILE|-", help="A file with the HTML; - is standard input.")
]
AttachOption = Annotated[
    list[Path] | None, typer.Option("--attach", metavar="FILE", help="A file to go along; may be repeated.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="The Idempotency-Key: with it a repetition sends nothing twice. A random one if none."),
]
MessageArgument = Annotated[str, typer.Argument(metavar="MESSAGE", help="A message of the mailbox of --from (msg_…).")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")]


@command(app)
def send(
    call: Invocation,
    sender: SenderOption,
    to: Annotated[list[str], typer.Option("--to", metavar="ADDRESS", help="A recipient; may be repeated.")],
    cc: Annotated[list[str] | None, typer.Option("--cc", metavar="ADDRESS", help="Likewise, for a copy.")] = None,
    bcc: Annotated[list[str] | None, typer.Option("--bcc", metavar="ADDRESS", help="Likewise, unseen.")] = None,
    subject: Annotated[str, typer.Option("--subject", help="The subject.")] = "",
    text: TextOption = None,
    text_file: TextFileOption = None,
    html_file: HtmlFileOption = None,
    attach: AttachOption = None,
    key: KeyOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Send a message. Recipients are addresses, or `Name <address>`."""
    body = {
        "to": [_recipient(one) for one in to],
        "subject": _readable("--subject", subject),
        **({"cc": [_recipient(one) for one in cc]} if cc else {}),
        **({"bcc": [_recipient(one) for one in bcc]} if bcc else {}),
        **_content(text, text_file, html_file, attach or ()),
    }
    if "@" in sender:
        body["from_address"] = _readable("--from", sender)
    _run(call, Operation.SEND, sender, body, None, key, dry_run=dry_run)


@command(app)
def reply(
    call: Invocation,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message that is answered (msg_…).")],
    sender: SenderOption,
    everybody: Annotated[bool, typer.Option("--all", help="Answer everybody, not the sender alone.")] = False,
    text: TextOption = None,
    text_file: TextFileOption = None,
    html_file: HtmlFileOption = None,
    attach: AttachOption = None,
    key: KeyOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Answer a message in the mailbox of --from, in its thread. To whom, and from which address, follows from it."""
    operation = Operation.REPLY_ALL if everybody else Operation.REPLY
    body = _content(text, text_file, html_file, attach or ())
    _run(call, operation, sender, body, _message(message_id), key, dry_run=dry_run)


@command(app)
def forward(
    call: Invocation,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message that is passed on (msg_…).")],
    sender: SenderOption,
    to: Annotated[list[str], typer.Option("--to", metavar="ADDRESS", help="A recipient; may be repeated.")],
    attachments: Annotated[bool, typer.Option(help="Whether its attachments go along.")] = True,
    text: TextOption = None,
    key: KeyOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Pass on a message in the mailbox of --from."""
    body = {
        "to": [_recipient(one) for one in to],
        "include_attachments": attachments,
        **({} if text is None else {"text": _readable("--text", text)}),
    }
    _run(call, Operation.FORWARD, sender, body, _message(message_id), key, dry_run=dry_run)


@command(app)
def cancel(
    call: Invocation,
    message_id: MessageArgument,
    sender: SenderOption,
) -> None:
    """Stop a message of which nothing was sent yet."""
    _close(call, sender, _message(message_id), None)


@command(app)
def resolve(
    call: Invocation,
    message_id: MessageArgument,
    outcome: Annotated[Resolution, typer.Argument(metavar="OUTCOME", help="sent or not_sent.")],
    sender: SenderOption,
) -> None:
    """Say what became of a message that is `uncertain`. Nothing is sent again by that."""
    _close(call, sender, _message(message_id), outcome)


# -- what was asked ---------------------------------------------------------------------------------------------------


def _recipient(text: str) -> str | dict[str, str]:
    """An address, or `Name <address>`; whether it is a good one is for the policy to say."""
    name, bracket, rest = _readable("a recipient", text).rpartition("<")
    if not bracket or not rest.rstrip().endswith(">"):
        return text
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return {"address": rest.rstrip()[:-1], "name": name}


def _content(text: str | None, text_file: str | None, html_file: str | None, attach: Any) -> Document:
    """The members of a request's body that say something. Raises a usage error."""
    if text is not None and text_file is not None:
        raise usage("--text and --text-file exclude each other")
    if text_file == html_file == STDIN:
        raise usage("--text-file and --html-file cannot both be standard input")
    body: Document = {}
    room = MAX_OCTETS
    for member, option, name in (("text", "--text-file", text_file), ("html", "--html-file", html_file)):
        if name is not None:
            octets = _read(option, name, room)
            room -= len(octets)
            body[member] = _decoded(option, octets)
    if text is not None:
        body["text"] = _readable("--text", text)
    if not body:
        raise usage("there is nothing to say", "Say it with --text, --text-file or --html-file.")
    files = []
    for path in attach:
        octets = _read("--attach", str(path), room)
        room -= len(octets)
        files.append(
            {
                "filename": _readable("--attach", path.name),
                "content_type": _media_type(path.name),
                "content_base64": base64.b64encode(octets).decode("ascii"),
            }
        )
    if files:
        body["attachments"] = files
    return body


def _read(option: str, name: str, room: int) -> bytes:
    """A file, or standard input. Raises `message_too_large` beyond `room` octets, a usage error if it cannot be had."""
    try:
        if name == STDIN and option != "--attach":
            octets = sys.stdin.buffer.read(room + 1)
        else:
            with open(name, "rb") as file:
                octets = file.read(room + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it cannot be read"
        raise usage(f"{option}: {os.fsencode(name).decode(errors='replace')}: {reason}") from None
    if len(octets) > room:
        raise PostroomError("message_too_large", details={"limit": MAX_OCTETS})
    return octets


def _decoded(option: str, octets: bytes) -> str:
    try:
        return octets.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise usage(f"{option}: this is not UTF-8 text") from None


def _message(message_id: str) -> str:
    if not is_id("msg_", message_id):
        raise PostroomError("message_not_found")
    return message_id


def _readable(option: str, text: str) -> str:
    """An argument that is text: what is none of the terminal's encoding comes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise usage(f"{option}: this is not UTF-8 text") from None
    return text


def _media_type(name: str) -> str:
    kind, encoding = mimetypes.guess_type(name, strict=True)
    if encoding is not None:
        return "application/gzip" if encoding == "gzip" else "application/octet-stream"
    return kind or "application/octet-stream"


_REQUESTS: Final[Mapping[Operation, type[SendRequest | ReplyRequest | ForwardRequest]]] = MappingProxyType(
    {Operation.SEND: SendRequest, Operation.FORWARD: ForwardRequest}
)

# -- doing it ---------------------------------------------------------------------------------------------------------


def _run(
    call: Invocation,
    operation: Operation,
    sender: str,
    body: Mapping[str, Any],
    message_id: str | None,
    key: str | None,
    *,
    dry_run: bool,
) -> None:
    try:
        checked = _REQUESTS.get(operation, ReplyRequest).model_validate(body)
    except ValidationError as error:
        raise violations([dict(one) for one in error.errors()]) from None
    request = checked.request(operation, message_id)
    sender = _readable("--from", sender)
    if dry_run:

        async def try_out(core: Core) -> tuple[Foreseen, ...]:
            identity = await find_identity(core, sender)
            with open_outlet(core) as outlet:
                return await outlet.sending.dry_run(identity, request)

        _foretell(call, run(call, try_out))
        return

    async def work(core: Core) -> Document:
        chosen = ledger.check_key(f"cli-{core.ids.ulid()}" if key is None else key)
        identity = await find_identity(core, sender)
        target = identity.public_id if message_id is None else f"{identity.public_id}/{message_id}"
        if key is None:
            # Before anything happens: when it is not known whether it was sent, this finds out.
            call.output.note(f"Idempotency-Key: {chosen}")
        try:
            with open_outlet(core) as outlet:
                done = await outlet.sending.submit(
                    identity, request, key=chosen, fingerprint=ledger.fingerprint(body, operation, target)
                )
        except PostroomError as error:
            details = {**(error.details or {}), "idempotency_key": chosen}
            raise PostroomError(
                error.code, details=details, retry_after=error.retry_after, message=error.message
            ) from error
        return {**done.message, "deduplicated": done.deduplicated, "idempotency_key": chosen}

    _tell(call, run(call, work))


def _close(call: Invocation, sender: str, message_id: str, resolution: Resolution | None) -> None:
    """Cancel it, or resolve it."""
    named = _readable("--from", sender)

    async def work(core: Core) -> Document:
        identity = await find_identity(core, named)
        ref, queries = MailboxRef(identity.tenant_id, identity.id), core.mailboxes.queries
        closing = Closing(
            *(core.database, core.blobs, core.clock, core.ids),
            queries=queries,
            changed=lambda changed, modseq: core.live.changed(changed.mailbox_id, modseq),
        )
        if resolution is None:
            await closing.cancel(ref, message_id)
        else:
            await closing.resolve(ref, message_id, resolution)
        view = await queries.get_message(ref, message_id, include=Include.NONE)
        return {"id": view.id, "status": view.status}

    closed = run(call, work)
    call.output.result(closed, human=f"{closed['id']} is {closed['status']}.")


def _foretell(call: Invocation, foreseen: tuple[Foreseen, ...]) -> None:
    rows = [
        {"address": one.address, "field": one.field.value, "status": one.status.value, "reason": one.reason}
        for one in foreseen
    ]
    if call.output.mode is Mode.JSON:
        call.output.result({"would_send": True, "recipients": rows})
        return
    call.output.line("Nothing was sent. This would be:")
    call.output.listing(rows, ("address", "field", "status", "reason"), essential="address")


def _tell(call: Invocation, sent: Document) -> None:
    if call.output.mode is not Mode.HUMAN:
        call.output.result(sent)
        return
    before = " before, under the same key" if sent["deduplicated"] else ""
    call.output.line(f"{sent['id']} was accepted{before}: {sent['status']}, thread {sent['thread_id']}.")
    call.output.listing(sent["deliveries"] or (), ("address", "field", "status", "policy"), essential="address")
