"""Mailboxes: folders, messages, placements, threads, flags, the change log, the word index, quota.

The only package that writes mailbox tables. Every transaction that changes a mailbox takes that mailbox's row lock,
raises its `modseq` once and appends to `changes` (architecture §1.3).
"""
