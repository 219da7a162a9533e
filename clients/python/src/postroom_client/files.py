"""Files that go into a message."""

from __future__ import annotations

import base64
import mimetypes

from .bodies import AttachmentInput


def attachment(
    content: bytes, filename: str, content_type: str | None = None, *, content_id: str | None = None
) -> AttachmentInput:
    """A file for `attachments` of what is sent. Its type is guessed from its name unless it is given.

    With a `content_id` it is shown where the HTML says `cid:` and that.
    """
    kind = content_type or mimetypes.guess_type(filename, strict=True)[0] or "application/octet-stream"
    made: AttachmentInput = {
        "filename": filename,
        "content_type": kind,
        "content_base64": base64.b64encode(content).decode("ascii"),
    }
    if content_id is not None:
        made["content_id"] = content_id
        made["disposition"] = "inline"
    return made
