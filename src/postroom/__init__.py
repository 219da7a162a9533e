"""Postroom: one self-hosted mail server for people and AI agents."""

__version__ = "0.1.0.dev0"
