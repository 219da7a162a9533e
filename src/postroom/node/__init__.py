"""One server process: what its settings ask of it, put together and run (architecture §4)."""

from postroom.node.process import Node

__all__ = ["Node"]
