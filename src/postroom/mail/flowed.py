"""Text of `format=flowed` (RFC 3676): soft line breaks undone, space-stuffing taken out."""

from typing import Final

SIGNATURE: Final = "-- "
_MAX_DEPTH: Final = 64


def unflow(text: str, *, delete_space: bool = False) -> str:
    """Paragraphs on one line each, of text with LF line ends; quoted lines begin with `>` for each level and a space.

    `delete_space` is DelSp=yes: the space before a soft break belongs to the break. A soft break before a line of
    another quote depth, a blank one or a signature separator ends the paragraph (§4.5). Never raises; linear.
    """
    out: list[str] = []
    paragraph: list[str] = []  # pieces of the one that goes on
    depth = 0
    for line in text.split("\n"):
        at = 0
        while line.startswith(">", at):
            at += 1
        content = line[at:]
        if content.startswith(" "):
            content = content[1:]  # §4.4: stuffed, or the space after the quote marks
        if paragraph and (at != depth or content in ("", SIGNATURE)):
            _emit(out, paragraph, depth)
        depth = at
        if content.endswith(" ") and content != SIGNATURE:
            paragraph.append(content[:-1] if delete_space else content)
        else:
            paragraph.append(content)
            _emit(out, paragraph, depth)
    if paragraph:
        _emit(out, paragraph, depth)
    return "\n".join(out)


def _emit(out: list[str], paragraph: list[str], depth: int) -> None:
    text = "".join(paragraph)
    paragraph.clear()
    if text != SIGNATURE:
        text = text.rstrip(" ")
    prefix = ">" * min(depth, _MAX_DEPTH)
    out.append(f"{prefix} {text}".rstrip() if depth else text)
