"""What must hold in the database whatever was killed: statements that name every row at fault, and so return none."""

from __future__ import annotations

from typing import Final

LEASE_GRACE: Final = "30 seconds"
"""How long after its lease a claim may wait to be taken again."""

INVARIANTS: Final[dict[str, str]] = {
    "a mailbox's used_bytes is the sum of its messages": """
        SELECT b.id AS mailbox, b.used_bytes, COALESCE(sum(m.raw_size), 0) AS counted
        FROM mailboxes b LEFT JOIN messages m ON m.tenant_id = b.tenant_id AND m.mailbox_id = b.id
        GROUP BY b.id, b.used_bytes HAVING b.used_bytes <> COALESCE(sum(m.raw_size), 0)""",
    "a folder's counters equal a recount": """
        SELECT f.mailbox_id AS mailbox, f.name, f.message_count, f.unseen_count, f.deleted_count, f.total_bytes, c.*
        FROM folders f LEFT JOIN LATERAL (
          SELECT count(*) AS messages, count(*) FILTER (WHERE NOT '$seen' = ANY (flags)) AS unseen,
                 count(*) FILTER (WHERE '$deleted' = ANY (flags)) AS deleted, COALESCE(sum(size), 0) AS bytes
          FROM placements p WHERE p.tenant_id = f.tenant_id AND p.folder_id = f.id) c ON true
        WHERE (f.message_count, f.unseen_count, f.deleted_count, f.total_bytes)
              IS DISTINCT FROM (c.messages, c.unseen, c.deleted, c.bytes)""",
    "a thread's counters equal a recount": """
        WITH state AS (
          SELECT m.tenant_id, m.mailbox_id, m.thread_seq, m.direction = 'inbound' AND m.status = 'received' AND NOT (
            SELECT '$seen' = ANY (p.flags) FROM placements p
            WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id
            ORDER BY p.saved_at, p.folder_id, p.uid LIMIT 1) AS unread
          FROM messages m
        ), counted AS (
          SELECT tenant_id, mailbox_id, thread_seq, count(*) AS messages, count(*) FILTER (WHERE unread) AS unread
          FROM state GROUP BY 1, 2, 3
        )
        SELECT t.mailbox_id AS mailbox, t.seq, t.message_count, t.unread_count, c.messages, c.unread
        FROM threads t LEFT JOIN counted c
          ON c.tenant_id = t.tenant_id AND c.mailbox_id = t.mailbox_id AND c.thread_seq = t.seq
        WHERE (t.message_count, t.unread_count) IS DISTINCT FROM (COALESCE(c.messages, 0), COALESCE(c.unread, 0))""",
    "thread numbers are below the mailbox's next": """
        SELECT t.mailbox_id AS mailbox, t.seq, b.next_thread_seq FROM threads t
        JOIN mailboxes b ON b.tenant_id = t.tenant_id AND b.id = t.mailbox_id WHERE t.seq >= b.next_thread_seq""",
    "every UID ever given is below the folder's next": """
        SELECT f.mailbox_id AS mailbox, f.name, f.uid_next, max(c.uid) AS given FROM folders f
        JOIN changes c ON c.tenant_id = f.tenant_id AND c.folder_id = f.id AND c.kind = 'placed'
        GROUP BY f.mailbox_id, f.name, f.uid_next HAVING max(c.uid) >= f.uid_next""",
    "UIDs rise in the order of the log, and none is given twice": """
        SELECT * FROM (
          SELECT mailbox_id AS mailbox, folder_id, seq, uid,
                 lag(uid) OVER (PARTITION BY folder_id ORDER BY seq) AS prior
          FROM changes WHERE kind = 'placed') u
        WHERE uid <= prior""",
    "the change log has no gap and ends at the mailbox's counter": """
        SELECT b.id AS mailbox, b.change_seq, count(c.seq) AS rows, min(c.seq) AS first, max(c.seq) AS last
        FROM mailboxes b LEFT JOIN changes c ON c.tenant_id = b.tenant_id AND c.mailbox_id = b.id
        GROUP BY b.id, b.change_seq
        HAVING b.change_seq <> COALESCE(max(c.seq), 0) OR count(c.seq) <> COALESCE(max(c.seq) - min(c.seq) + 1, 0)""",
    "modseq rises along the change log": """
        SELECT * FROM (
          SELECT mailbox_id AS mailbox, seq, modseq, lag(modseq) OVER (PARTITION BY mailbox_id ORDER BY seq) AS prior
          FROM changes) c
        WHERE modseq < prior""",
    "no modseq is above its folder's, nor that above the mailbox's": """
        SELECT f.mailbox_id AS mailbox, f.name, f.highest_modseq, b.modseq, max(p.modseq) AS placed
        FROM folders f JOIN mailboxes b ON b.tenant_id = f.tenant_id AND b.id = f.mailbox_id
        LEFT JOIN placements p ON p.tenant_id = f.tenant_id AND p.folder_id = f.id
        GROUP BY f.mailbox_id, f.name, f.highest_modseq, b.modseq
        HAVING f.highest_modseq > b.modseq OR max(p.modseq) > f.highest_modseq""",
    "the replayed change log is what stands in the folders": """
        WITH log AS (
          SELECT DISTINCT ON (folder_id, uid) tenant_id, folder_id, uid, kind, message, modseq, flags
          FROM changes WHERE kind IN ('placed', 'flags', 'removed') ORDER BY folder_id, uid, seq DESC
        ), stands AS (
          SELECT p.tenant_id, p.folder_id, p.uid, m.public_id AS message, p.modseq, p.flags
          FROM placements p JOIN messages m ON m.tenant_id = p.tenant_id AND m.id = p.message_id
        )
        SELECT l.folder_id AS log_folder, l.uid AS log_uid, l.message AS log_message, l.modseq AS log_modseq,
               l.flags AS log_flags, s.*
        FROM (SELECT * FROM log WHERE kind <> 'removed') l
        FULL JOIN stands s ON s.tenant_id = l.tenant_id AND s.folder_id = l.folder_id AND s.uid = l.uid
        WHERE l.uid IS NULL OR s.uid IS NULL OR l.message <> s.message OR l.modseq <> s.modseq
           OR NOT (l.flags @> s.flags AND s.flags @> l.flags)""",
    "events of a mailbox are numbered without a gap": """
        SELECT b.id AS mailbox, b.event_seq, count(e.id) AS rows, min(e.sequence) AS first, max(e.sequence) AS last
        FROM mailboxes b LEFT JOIN events e ON e.owner_kind = 'mailbox' AND e.owner_id = b.identity_public_id
        GROUP BY b.id, b.event_seq
        HAVING b.event_seq <> COALESCE(max(e.sequence), 0) OR count(e.id) <> COALESCE(max(e.sequence), 0)""",
    "every message from outside has one message.received, others none": """
        SELECT m.mailbox_id AS mailbox, m.public_id, m.source, count(e.id) AS events FROM messages m
        LEFT JOIN events e ON e.tenant_id = m.tenant_id AND e.message_id = m.id AND e.type = 'message.received'
        GROUP BY m.mailbox_id, m.public_id, m.source HAVING count(e.id) <> (m.source = 'mx')::int""",
    "every message stands somewhere": """
        SELECT m.mailbox_id AS mailbox, m.public_id FROM messages m
        WHERE NOT EXISTS (SELECT FROM placements p WHERE p.tenant_id = m.tenant_id AND p.message_id = m.id)""",
    "every message has its text": """
        SELECT m.mailbox_id AS mailbox, m.public_id FROM messages m LEFT JOIN message_texts t
          ON t.tenant_id = m.tenant_id AND t.message_id = m.id WHERE t.message_id IS NULL""",
    "a placement is in its message's mailbox and says its size": """
        SELECT p.folder_id, p.uid, p.mailbox_id AS mailbox, m.mailbox_id AS message_in,
               f.mailbox_id AS folder_in, p.size, m.raw_size FROM placements p
        JOIN messages m ON m.tenant_id = p.tenant_id AND m.id = p.message_id
        JOIN folders f ON f.tenant_id = p.tenant_id AND f.id = p.folder_id
        WHERE p.mailbox_id <> m.mailbox_id OR f.mailbox_id <> m.mailbox_id OR p.size <> m.raw_size""",
    "every message has its words or a task that will make them": """
        SELECT m.mailbox_id AS mailbox, m.public_id FROM messages m
        WHERE NOT EXISTS (SELECT FROM message_words w WHERE w.tenant_id = m.tenant_id AND w.message_id = m.id)
          AND NOT EXISTS (SELECT FROM word_tasks t WHERE t.tenant_id = m.tenant_id AND t.mailbox_id = m.mailbox_id
                          AND m.id BETWEEN t.first_id AND t.last_id)""",
    "no claim outlives its lease, none is parked": f"""
        SELECT 'word_tasks' AS queue, id::text AS job, lease_until, parked_at, attempts, last_error FROM word_tasks
        WHERE lease_until < now() - interval '{LEASE_GRACE}' OR parked_at IS NOT NULL
        UNION ALL
        SELECT 'schedules', name, lease_until, parked_at, attempts, last_error FROM schedules
        WHERE lease_until < now() - interval '{LEASE_GRACE}' OR parked_at IS NOT NULL""",
    "nobody was the victim of a deadlock": """
        SELECT datname, deadlocks FROM pg_stat_database WHERE datname = current_database() AND deadlocks > 0""",
}
