"""Postroom: one self-hosted mail server for people and AI agents."""

__version__ = "0.1.0.dev0"
BUILT = "2026-11-30"
"""The day of this version; raised with it. What expires a year after the build is reckoned from here."""
