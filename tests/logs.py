"""What is logged, for tests that ask."""

from __future__ import annotations


class Log:
    """Keeps what is logged, whatever the process does with its log: put it in the place of a module's logger."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[str, object]]] = []
        """Level, event and fields of each line."""

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.told]

    def info(self, event: str, **fields: object) -> None:
        self.told.append(("info", event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self.told.append(("warning", event, fields))

    def error(self, event: str, **fields: object) -> None:
        self.told.append(("error", event, fields))
