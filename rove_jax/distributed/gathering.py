"""All processes of a run in one place before the runtime is told of any, so that one that does not come is named.

The runtime's own wait ends in an abort that names nobody (jax 0.10.2 and 0.12.0). Process 0 listens at the address
where its runtime will: the others come there with their number, and are told to go on, or who is missing. Lines of
text, so that whatever else may listen or call at that address is not taken for one of ours.
"""

import contextlib
import socket
import time

from rove_jax.errors import RunError, UsageError

GREETING, GO = "rove-jax process", "go"
LOOK = 0.2
"""Seconds between two looks at the time."""
LINE = 512
"""Bytes of a line, at most."""


class Missing(RunError):
    """Not all processes of the run came."""


def gather(address: str, index: int, count: int, seconds: float) -> None:
    """Return in process `index` of `count` when all have come to `address` (host:port of process 0).

    Raises `Missing` in all that have come after `seconds`, naming the others, and `UsageError` for an address that
    process 0 cannot listen at, or numbers that contradict each other.
    """
    host, _, port = address.rpartition(":")
    if count == 1:
        return
    if index:
        call(host.strip("[]"), int(port), index, count, seconds)
        return
    six = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if six else socket.AF_INET
    try:
        server = socket.create_server(("", int(port)), family=family, dualstack_ipv6=six, backlog=count)
    except OSError as error:
        raise UsageError(f"{address}: process 0 cannot listen there ({error.strerror}); choose another port") from error
    with server, contextlib.ExitStack() as stack:
        guests: dict[int, socket.socket] = {}
        verdict = listen(server, stack, guests, count, seconds)
        for guest in guests.values():
            with contextlib.suppress(OSError):  # it died since
                guest.sendall(f"{verdict or GO}\n".encode())
    if verdict:
        raise Missing(verdict)


def listen(
    server: socket.socket, stack: contextlib.ExitStack, guests: dict[int, socket.socket], count: int, seconds: float
) -> str | None:
    """Fill `guests`, those who have come by their number, until all have, or else say who has not."""
    server.settimeout(LOOK)
    deadline = time.monotonic() + seconds
    while True:
        for number in [number for number, guest in guests.items() if gone(guest)]:
            guests.pop(number).close()
        missing = sorted({*range(1, count)} - guests.keys())
        if not missing:
            return None
        if time.monotonic() > deadline:
            numbers = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {count}"
            return f"{numbers} did not come within {seconds:g} s (training.join_seconds)"
        with contextlib.suppress(OSError):  # nobody came, or went again before a word
            guest = stack.enter_context(server.accept()[0])
            words = read_line(guest, time.monotonic() + 2.0).removeprefix(GREETING).split()
            if len(words) == 2 and all(word.isdecimal() for word in words):
                number, theirs = map(int, words)
                if theirs != count:
                    return f"process {number} counts {theirs} processes, process 0 {count}; give all the same number"
                if number in guests:
                    return f"two processes have number {number} of {count}; give each its own"
                guests[number] = guest


def call(host: str, port: int, index: int, count: int, seconds: float) -> None:
    """Tell process 0 that this one is here, and wait for what it says. Raises `Missing`."""
    deadline = time.monotonic() + seconds
    why = "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=2.0) as guest:
                guest.sendall(f"{GREETING} {index} {count}\n".encode())
                said = read_line(guest, deadline + seconds)  # process 0 may have begun to wait later
        except OSError as error:
            why = error.strerror or str(error)
        else:
            if said == GO:
                return
            if "process" in said:
                raise Missing(said)
            why = "what listens there is no process of this run"
        time.sleep(LOOK)
    raise Missing(f"process 0 of {count} did not come to {host}:{port} within {seconds:g} s ({why})")


def read_line(source: socket.socket, deadline: float) -> str:
    """What comes up to the end of a line, without it; "" if nothing does or time is up."""
    source.settimeout(LOOK)
    found = b""
    while time.monotonic() < deadline and len(found) < LINE and not found.endswith(b"\n"):
        with contextlib.suppress(TimeoutError):
            piece = source.recv(1)
            if not piece:
                return ""
            found += piece
    return found.decode("ascii", "replace").removesuffix("\n")


def gone(guest: socket.socket) -> bool:
    """Whether the other end has closed."""
    guest.settimeout(0.0)
    try:
        return guest.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
