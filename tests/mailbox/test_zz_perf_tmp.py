import asyncio, time, sys
from datetime import datetime, timezone
from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from .seed import make_world
from postroom.mailbox.rules import FlagMode
from postroom.mailbox.reads import Columns
from postroom.mailbox.queries import *
import pytest
async def test_perf(db):
    clock=ManualClock(datetime(2030,1,1,tzinfo=timezone.utc)); ids=IdGenerator(clock)
    w=await make_world(db,clock,ids)
    uids=await w.fill("INBOX",12000,per_thread=3,analyze=False)
    inbox=await w.folder("INBOX"); arch=await w.folder("Archive"); trash=await w.folder("Trash")
    async def timed(name, coro):
        async with db.acquire() as c: l0=await c.fetchval("select pg_current_wal_insert_lsn()")
        t=time.perf_counter(); r=await coro; dt=(time.perf_counter()-t)*1e3
        async with db.acquire() as c: wal=await c.fetchval("select pg_current_wal_insert_lsn() - $1::pg_lsn", l0)
        print(f"{name:30s} {dt:8.1f} ms  {float(wal)/1024:8.0f} KB"); return r
    for i in range(4):
        await timed("store1000 seen", w.boxes.set_flags(w.ref,inbox,uids[i*1000:(i+1)*1000],FlagMode.ADD,["$seen"]))
    await timed("store1000 flagged", w.boxes.set_flags(w.ref,inbox,uids[0:1000],FlagMode.ADD,["$flagged"]))
    await timed("store1000 noop", w.boxes.set_flags(w.ref,inbox,uids[0:1000],FlagMode.ADD,["$flagged"]))
    await timed("store1", w.boxes.set_flags(w.ref,inbox,[5000],FlagMode.ADD,["$flagged"]))
    await timed("store1", w.boxes.set_flags(w.ref,inbox,[5001],FlagMode.ADD,["$flagged"]))
    await timed("copy1000", w.boxes.copy(w.ref,inbox,uids[0:1000],arch))
    await timed("copy1000", w.boxes.copy(w.ref,inbox,uids[1000:2000],arch))
    await timed("store1000 shared", w.boxes.set_flags(w.ref,inbox,uids[0:1000],FlagMode.REMOVE,["$seen"]))
    await timed("move1000", w.boxes.move(w.ref,inbox,uids[2000:3000],trash))
    await timed("move1000", w.boxes.move(w.ref,inbox,uids[3000:4000],trash))
    await timed("del1000", w.boxes.set_flags(w.ref,inbox,uids[4000:6000],FlagMode.ADD,["$deleted"]))
    await timed("expunge2000", w.boxes.expunge(w.ref,inbox))
    s=await timed("snapshot", w.boxes.reads.folder_snapshot(w.ref,inbox)); print(len(s.uids))
    s=await timed("snapshot", w.boxes.reads.folder_snapshot(w.ref,inbox))
    async def fetch(cols, u):
        n=0
        async for p in w.boxes.reads.fetch_rows(w.ref,inbox,u,cols): n+=len(p)
        return n
    for cols in (Columns.NONE, Columns.ENVELOPE, Columns.ENVELOPE|Columns.STRUCTURE|Columns.IDS|Columns.BYTES):
        print(cols, await timed("fetch list", fetch(cols,list(s.uids))))
        print(cols, await timed("fetch range", fetch(cols,range(1,20000))))
    await timed("changes_since", w.boxes.reads.changes_since(w.ref,inbox,modseq=s.modseq-3,uid_next=s.folder.uid_next))
    await timed("changes_since0", w.boxes.reads.changes_since(w.ref,inbox,modseq=2,uid_next=1))
    q=w.boxes.queries
    for _ in range(7):
        p=await timed("list_messages", q.list_messages(w.ref,MessageFilter(),limit=25))
    p=await timed("list_messages deep", q.list_messages(w.ref,MessageFilter(),limit=25,before=(p[0].received_at - __import__('datetime').timedelta(seconds=9000),1)))
    await timed("list_messages label", q.list_messages(w.ref,MessageFilter(label="zzz"),limit=25))
    await timed("list_messages thread", q.list_messages(w.ref,MessageFilter(thread_id=p[0].thread_id),limit=25))
    for _ in range(3): t=await timed("list_threads", q.list_threads(w.ref,ThreadFilter(),limit=25))
    await timed("list_threads label", q.list_threads(w.ref,ThreadFilter(label="zzz"),limit=25))
    await timed("get_thread", q.get_thread(w.ref,t[3].id))
    await timed("thread_messages", q.thread_messages(w.ref,t[3].id,limit=25))
    await timed("get_message", q.get_message(w.ref,p[0].id))
    await timed("next_message", q.next_message_after(w.ref,Arrival(since=p[0].received_at,sender="@example.com",subject_contains="SUBJECT 99")))
