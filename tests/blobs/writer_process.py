"""A process that writes batches for ever and says on standard output which keys are durable. It waits to be killed."""

import asyncio
import hashlib
import random
import sys

from postroom.blobs import MaildirStore, PutGroup

TENANT = "ten_01J9Z3K8V4QW7X2M5N6P8R0T1A"


def content(key: str) -> bytes:
    """What a key must hold: any part missing shows."""
    size = int(hashlib.sha256(key.encode()).hexdigest()[:4], 16)
    return hashlib.sha256(key.encode()).digest() + b"." * size + b"end"


def raw(seed: int, n: int, identity: int) -> str:
    return f"t/{TENANT}/i/idn_01J9Z3K8V4QW7X2M5N6P8R{identity:04d}/m/msg_0000000000000000{seed:04d}{n:06d}/raw.eml"


async def write(root: str, seed: int) -> None:
    store = MaildirStore(root)
    chance = random.Random(seed)
    n = 0
    while True:
        groups, lines = [], []
        for _ in range(chance.randrange(1, 30)):
            n += 1
            key = raw(seed, n, chance.randrange(40))
            keys = [key, key + ".twin"] if chance.random() < 0.3 else [key]
            data = content(key)
            middle = chance.randrange(len(data))
            groups.append(PutGroup((data[:middle], data[middle:]), keys))
            lines.append(" ".join(keys))
        for line, result in zip(lines, await store.put_many(groups), strict=True):
            if result is None:
                print(line, flush=False)
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2])))
