"""RFC 5322 and MIME: reading mail as a pure function of its bytes.

`mime.parse` scans a message once into a tree of byte offsets; everything else works on that tree and the raw bytes:
`header`, `address`, `date`, `ids`, `subject` and `trace` read fields, `transfer` and `charset` decode content, `body`
chooses and derives text, `imap_data` renders what IMAP serves. `automation` tells what kind of message it is, with
`dsn`, `mdn`, `arf` and `calendar`; `protection` whether it is encrypted or signed, `safety` what attachments are;
`tnef` unpacks `winmail.dat`; `impersonation` tells whom it would pass for, `confusables` which names look alike.
Nothing here raises on the content of a message.
"""
