"""A deployment behind its REST doors."""

from __future__ import annotations

from tests.rest.conftest import world

__all__ = ["world"]
