"""Clients of `keras-vit serve`: most send photographs, a fifth of the requests are faulty."""

import asyncio
import json
import random
import struct
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field

CLIENTS = 32
FAULTY = 0.2
PATIENCE = 60  # seconds until an answer is given up
TOLERANCE = 1e-3  # batches of other sizes round differently
# Statuses that each fault may be answered with; None: the client has hung up itself.
FAULTS: dict[str, tuple[int | None, ...]] = {
    "garbage": (422, 429),
    "truncated": (422, 429),
    "too many bytes": (413, 429),
    "too many pixels": (422, 429),
    "hung up while sending": (None,),
    "hung up while waiting": (None,),
}


@dataclass
class Outcome:
    """What the clients saw."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of right answers
    broken: int = 0  # connections that the server closed or refused

    @property
    def lost(self) -> int:
        """Photographs that were not answered: refused, or their connection was closed."""
        return self.photographs - self.statuses["photograph: 200"]

    @property
    def photographs(self) -> int:
        """The photographs that were sent."""
        return sum(n for kind, n in self.statuses.items() if kind.startswith("photograph: "))


@dataclass(frozen=True)
class Photograph:
    """An image file and the probability of its class, or of each class by version."""

    contents: bytes
    expected: dict[str, float]


def bomb(side: int = 30_000) -> bytes:
    """A PNG file of a few bytes that declares `side` x `side` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + sum_

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


class Connection:
    """A keep-alive HTTP connection that costs the load generator little."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, body: bytes, part: float = 1.0, path: str = "/predict") -> None:
        """Sends a request, or only the first `part` of its body."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer = self.streams[1]
        writer.write(head.encode() + body[: int(part * len(body))])
        await writer.drain()

    async def answer(self) -> tuple[int, dict]:
        """The status and the JSON of the answer."""
        assert self.streams is not None
        reader = self.streams[0]
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        content = await reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), json.loads(content) if b"{" in content[:1] else {}

    def close(self) -> None:
        """Hangs up."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


async def load(
    port: int,
    photographs: list[Photograph],
    seconds: float,
    max_bytes: int,
    outcome: Outcome,
    clients: int = CLIENTS,
    faulty: float = FAULTY,
    seed: int = 0,
) -> None:
    """Sends requests for that long; an `Outcome` that is passed in can be read meanwhile."""
    end = time.monotonic() + seconds
    await asyncio.gather(
        *(
            _client(port, photographs, end, max_bytes, outcome, seed + i, faulty)
            for i in range(clients)
        )
    )


async def _client(
    port: int,
    photographs: list[Photograph],
    end: float,
    max_bytes: int,
    outcome: Outcome,
    seed: int,
    faulty: float,
) -> None:
    dice, connection = random.Random(seed), Connection(port)
    while time.monotonic() < end:
        photograph, kind = dice.choice(photographs), "photograph"
        try:
            async with asyncio.timeout(PATIENCE):
                if dice.random() < faulty:
                    kind = dice.choice(list(FAULTS))
                    status = await _misbehave(connection, kind, photograph, max_bytes, dice)
                    outcome.statuses[f"{kind}: {status or 'gone'}"] += 1
                    if status not in FAULTS[kind]:
                        outcome.wrong.append(f"{kind} was answered with {status}")
                else:
                    status = await _classify(connection, photograph, outcome)
            if status == 429:
                await asyncio.sleep(dice.uniform(0.1, 1))
        except (OSError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
            connection.close()
            outcome.broken += 1
            outcome.statuses[f"{kind}: {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)
    connection.close()


async def _classify(connection: Connection, photograph: Photograph, outcome: Outcome) -> int:
    start = time.monotonic()
    await connection.send(photograph.contents)
    status, content = await connection.answer()
    outcome.statuses[f"photograph: {status}"] += 1
    if status == 200:
        best = {p["class"]: p["probability"] for p in content["predictions"]}
        # The most probable classes, all of them with the probabilities of a direct call.
        shared = best.keys() & photograph.expected.keys()
        error = max((abs(best[c] - photograph.expected[c]) for c in shared), default=1.0)
        if error > TOLERANCE or len(shared) < len(best):
            outcome.wrong.append(f"probabilities differ by {error:.2g}")
        else:
            outcome.right += 1
            outcome.seconds.append(time.monotonic() - start)
    elif status not in (429, 503):
        outcome.wrong.append(f"a photograph was answered with {status}")
    return status


async def _misbehave(
    connection: Connection,
    fault: str,
    photograph: Photograph,
    max_bytes: int,
    dice: random.Random,
) -> int | None:
    """Sends a faulty request; the status of its answer, None where the client hangs up."""
    contents = photograph.contents
    if fault.startswith("hung up"):
        await connection.send(contents, 0.5 if fault.endswith("sending") else 1.0)
        await asyncio.sleep(dice.uniform(0, 0.2))
        connection.close()
        return None
    bodies = {
        "garbage": lambda: dice.randbytes(20_000),
        "truncated": lambda: contents[: len(contents) // 2],
        "too many bytes": lambda: bytes(max_bytes + 1),
        "too many pixels": bomb,
    }
    await connection.send(bodies[fault]())
    return (await connection.answer())[0]


def send_slowly(port: int, clients: int) -> None:
    """So many clients, each of which begins again when it is cut off; never returns."""

    async def send() -> None:
        await asyncio.gather(*(_slow_client(port) for _ in range(clients)))

    asyncio.run(send())


async def _slow_client(port: int) -> None:
    """Sends headers, a byte per second."""
    while True:
        await asyncio.sleep(random.uniform(0, 2))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /predict HTTP/1.1\r\nX-Slow: ")
            end = asyncio.ensure_future(reader.read())
            while not end.done():
                writer.write(b"a")
                await asyncio.wait([end], timeout=1)
            end.exception()
            writer.close()
        except OSError:
            pass
