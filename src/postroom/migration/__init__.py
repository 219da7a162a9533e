"""Moving in and out: mailboxes of other programs into ours, and ours into files that others read (decisions C7).

A source yields folders and messages, a step at a time; `Importer` appends them through the mailbox's one writer and
remembers them in the same transaction. `export` writes Maildir++ or mbox. It owns the table `imported`.
"""
