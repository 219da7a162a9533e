"""The table of handlers: a new command is a row here, and a file if it is a new concern."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from postroom.imap import commands as c
from postroom.servers.imap import (
    acl,
    append,
    auth,
    fetch,
    folders,
    idle,
    listing,
    metadata,
    notify,
    quota,
    search,
    select,
    sort,
    store,
    thread,
    transfer,
)
from postroom.servers.imap.session import Handler

HANDLERS: Final[Mapping[type[c.Command], Handler]] = MappingProxyType(
    {
        c.Capability: auth.capability,
        c.Noop: auth.noop,
        c.Logout: auth.logout,
        c.Id: auth.identify,
        c.Enable: auth.enable,
        c.StartTls: auth.start_tls,
        c.Login: auth.login,
        c.Authenticate: auth.authenticate,
        c.Namespace: folders.namespace,
        c.List: listing.list_,
        c.Lsub: listing.lsub,
        c.StatusCommand: folders.status,
        c.Create: folders.create,
        c.Delete: folders.delete,
        c.Rename: folders.rename,
        c.Subscribe: folders.subscribe,
        c.Unsubscribe: folders.unsubscribe,
        c.Select: select.select,
        c.Check: select.check,
        c.Close: select.close,
        c.Unselect: select.unselect,
        c.Fetch: fetch.fetch,
        c.Store: store.store,
        c.Expunge: store.expunge,
        c.Search: search.run,
        c.Sort: sort.run,
        c.Thread: thread.run,
        c.CancelUpdate: sort.cancel_update,
        c.Copy: transfer.copy,
        c.Move: transfer.move,
        c.Append: append.append,
        c.Replace: append.replace,
        c.Idle: idle.idle,
        c.Notify: notify.notify,
        c.GetQuota: quota.get_quota,
        c.GetQuotaRoot: quota.get_quota_root,
        c.Compress: auth.compress,
        c.GetMetadata: metadata.get_metadata,
        c.SetMetadata: metadata.set_metadata,
        c.SetAcl: acl.set_acl,
        c.DeleteAcl: acl.delete_acl,
        c.GetAcl: acl.get_acl,
        c.ListRights: acl.list_rights,
        c.MyRights: acl.my_rights,
    }
)
