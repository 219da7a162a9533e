"""What a check of the doctor says (cli-config-ops C9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check. `fix` says what to do about a warning or failure."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def document(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status.value, "detail": self.detail, "fix": self.fix}


def passed(name: str, detail: str) -> Check:
    return Check(name, Status.PASS, detail)


def warned(name: str, detail: str, fix: str) -> Check:
    return Check(name, Status.WARN, detail, fix)


def failed(name: str, detail: str, fix: str) -> Check:
    return Check(name, Status.FAIL, detail, fix)


def skipped(name: str, detail: str) -> Check:
    return Check(name, Status.SKIP, detail)
