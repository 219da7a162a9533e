"""Servers: they move bytes and call services."""
