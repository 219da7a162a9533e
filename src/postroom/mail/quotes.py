"""What is new in a message: its text without quoted messages and signature (inbound §14, decision D27).

Never empties a text that says something. Linear in its length.
"""

import re
from typing import Final

from postroom.mail.quote_lines import Header, is_footer, is_forward_line, is_header_block, is_separator, reply_header

_SIGNATURE_LINES: Final = 15
_FOOTER_LINES: Final = 5
_MAX_CANDIDATES: Final = 5000
_LINES_A_CANDIDATE: Final = 16  # that cost as much to look at
_MARKS: Final = (":", ">", "：", "--")
_RULE: Final = re.compile(r"_{10,}|-{20,}")


class TooManyCandidates(Exception):
    """More lines look like the beginning of a quoted message than the caller has time for."""


def new_text(text: str, marked: str | None = None, *, candidates: int | None = None) -> str:
    """What the author of a message wrote now, of its whole `text`.

    `marked` is the text before what the mail program marked as quoted in the HTML, when it did (step 1). With
    `candidates`, raises TooManyCandidates when more lines than that must be looked at closely; without, the first 5000
    are.
    """
    if marked is not None and (found := _without_quotes(marked, candidates)):
        return found
    return _without_quotes(text, candidates) or _without_signature(text.split("\n")) or text.strip()


def _without_quotes(text: str, candidates: int | None) -> str:
    if not any(mark in text for mark in _MARKS):
        return _without_footer(text)  # nothing that is quoted, and no signature, comes without one of these
    lines = [
        line.rstrip() if line and line[-1].isspace() and line.strip() != "--" else line for line in text.split("\n")
    ]
    first = next((number for number, line in enumerate(lines) if line and not line.isspace()), None)
    if first is None:
        return ""
    if is_forward_line(lines[first].strip()) or is_header_block(lines, first):
        return text.strip()  # what is handed on is the content (D27)
    kept = _before_quote(lines, first, candidates)
    return _without_signature([line for line in kept if not _is_quoted(line)])


def _is_quoted(line: str) -> bool:
    return line.lstrip(" \t\xa0").startswith(">") and not line.startswith(">From ")


def _before_quote(lines: list[str], first: int, candidates: int | None) -> list[str]:
    """Up to the first line of a quoted message; lines that only lead to lines with `>` go, if there are answers below
    those.
    """
    if candidates is not None and len(lines) > _LINES_A_CANDIDATE * max(candidates, 1):
        raise TooManyCandidates
    kept: list[str] = []
    answers = _Answers(lines)
    done = tested = 0
    for number in range(first, len(lines)):
        if number < done:
            continue
        line = lines[number]
        if not line or not _is_candidate(line):
            continue
        tested += 1
        if candidates is not None and tested > candidates:
            raise TooManyCandidates
        if tested > _MAX_CANDIDATES:
            break
        stripped = line.strip()
        if number > first and (is_separator(stripped) or is_header_block(lines, number)):
            above = number - 1 if _RULE.fullmatch(lines[number - 1].strip()) else number
            return kept + lines[done:above]
        if stripped[-1] not in ":：" or line.startswith(">"):
            continue
        start, header = _reply_header(lines, number, max(first, done), stripped)
        if header is Header.NO:
            continue
        following = _next_line(lines, number + 1)
        if following is None:
            continue
        quoted = _is_quoted(lines[following])
        if quoted and (start == first or answers.after(following)):
            kept += lines[done:start]
            done = number + 1
        elif start > first and (quoted or header in (Header.YES, Header.FROM_THE_START)):
            return kept + lines[done:start]
    return kept + lines[done:]


def _is_candidate(line: str) -> bool:
    return line[-1] in ":：-" or line[:2] == "--" or ":" in line[:20] or "：" in line[:20]


def _reply_header(lines: list[str], number: int, first: int, stripped: str) -> tuple[int, Header]:
    """Where the reply line that ends with line `number` begins, and how sure it is one: alone, or joined with the lines
    before it, which a mail program wrapped.
    """
    header = reply_header(stripped)
    if header is Header.FROM_THE_START:
        return number, header
    joined = stripped
    for start in (number - 1, number - 2):
        if start < first or not (above := lines[start].strip()) or _is_quoted(above) or above[-1] in ".!?:：":
            break
        joined = f"{above} {joined}"
        whole = reply_header(joined)
        if whole is Header.FROM_THE_START or (whole is Header.YES and (header is not Header.YES or stripped[0] == "<")):
            return start, whole
    return number, header


def _next_line(lines: list[str], at: int) -> int | None:
    """The next line that is not blank, close by."""
    return next((number for number in range(at, min(at + 4, len(lines))) if lines[number].strip()), None)


class _Answers:
    """Whether something was written below or between quoted lines; looks at every line once, when first asked."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._found: list[bool] | None = None

    def after(self, at: int) -> bool:
        """Whether from line `at` on there are lines that are not quoted, before the text ends or a rule is drawn."""
        if self._found is None:
            end = _end_of_text(self._lines)
            found = [False] * (len(self._lines) + 1)
            for number in range(end - 1, -1, -1):
                line = self._lines[number]
                stripped = line.strip()
                if not stripped or _is_quoted(line):
                    found[number] = found[number + 1]
                else:
                    found[number] = not (_RULE.fullmatch(stripped) or is_separator(stripped))
            self._found = found
        return self._found[at]


def _without_signature(lines: list[str]) -> str:
    """Trimmed text without a signature (RFC 3676 §4.3) and what telephones add, looked for among the last lines."""
    return "\n".join(lines[: _end_of_text(lines)]).strip()


def _without_footer(text: str) -> str:
    """The same for text that can hold no signature separator: a look at its end."""
    text = text.strip()
    tail = text.rsplit("\n", 4 * _FOOTER_LINES)[1:]
    end = _end_of_text(tail)
    if end == len(tail):
        return text
    return text[: len(text) - sum(len(line) + 1 for line in tail[end:])].strip()


def _end_of_text(lines: list[str]) -> int:
    end, rank = len(lines), 0
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number].strip()
        if not line:
            continue
        if line == "--" or (rank < _FOOTER_LINES and is_footer(line)):
            end = number
        rank += 1
        if rank == _SIGNATURE_LINES:
            break
    return end
