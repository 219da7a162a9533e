"""Subjects for display (inbound §28.11, edge row C8). Threads are never decided by them."""

import re
from typing import Final

EMPTY_SUBJECT: Final = "(no subject)"
MAX_SUBJECT_CHARS: Final = 998
_MAX_PREFIXES: Final = 10
_MAX_TAG: Final = 40

# The words of §28.11, then those of further languages; an underscore stands for a blank. Two letters that say something
# else in English (`FS:`, for sale) are left out.
_WORDS: Final = (
    "re fw fwd aw wg sv vs vb antw doorst tr rif enc res rv odp pd ynt ilt atb πληρ σχετ ответ "
    "回复 回覆 答复 转发 轉寄 "
    "رد إعادة_توجيه پاسخ השב הועבר απ πρθ отв пересл відп отг препр "
    "回復 答覆 轉發 转寄 返信 転送 답장 회신 전달 ตอบกลับ ส่งต่อ trả_lời chuyển_tiếp "
    "antwort rép transf reenv inoltro odg proslj vl vá továbbítás ats pers bls trs yanıt"
)
_ANY_WORD: Final = "|".join(re.escape(word.replace("_", " ")) for word in _WORDS.split(" "))
_COUNTER: Final = r"(?:[\[(][0-9]{1,4}[\])])?"
# A single letter is a prefix only right before a colon and a space, so that `R2D2` stays.
_PREFIX: Final = re.compile(rf"(?:(?:{_ANY_WORD})\ ?{_COUNTER}\ ?[:：]|[ir]{_COUNTER}[:：](?=\ ))\ *+", re.IGNORECASE)
_TAG: Final = re.compile(rf"\[[^\[\]]{{1,{_MAX_TAG - 2}}}\]\ ?")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def clean_subject(subject: str) -> str:
    """Decoded subject on one line: control characters become spaces, runs of white space one, ends trimmed."""
    spaced = _CONTROLS.sub(" ", subject[: 4 * MAX_SUBJECT_CHARS])
    return " ".join(spaced.split())[:MAX_SUBJECT_CHARS].rstrip()


def normalise_subject(subject: str | None) -> str:
    """Subject without reply and forward prefixes in the languages of §28.11; `(no subject)` when nothing is left.

    A leading `[list tag]` stays and prefixes after it go. At most ten prefixes are removed.
    """
    text = clean_subject(subject or "")
    tag = ""
    at = removed = 0
    while True:
        if not tag and (found := _TAG.match(text, at)):
            tag = found[0].rstrip() + " "
        elif removed < _MAX_PREFIXES and (found := _PREFIX.match(text, at)):
            removed += 1
        else:
            break
        at = found.end()
    return (tag + text[at:]).strip() or EMPTY_SUBJECT
