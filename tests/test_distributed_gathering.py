"""Before the runtime knows of them: processes that come, that do not, and that contradict each other."""

import contextlib
import socket
import threading
import time

import pytest

from rove_jax.distributed.gathering import GREETING, Missing, gather
from rove_jax.errors import UsageError


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def outcomes(address: str, *calls: tuple[int, int], seconds: float = 30.0, late: int = -1) -> list[str]:
    """What becomes of each (number, count) that comes, "" if all have; the number that is `late` comes 0.4 s later."""
    said = ["" for _ in calls]

    def come(place: int, index: int, count: int) -> None:
        time.sleep(0.4 if index == late else 0.0)
        try:
            gather(address, index, count, seconds)
        except Missing as error:
            said[place] = str(error)

    threads = [threading.Thread(target=come, args=(place, *call)) for place, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return said


def test_all_go_on_when_all_have_come_and_the_address_is_free_again(address):
    for _ in range(2):
        assert outcomes(address, (2, 4), (0, 4), (3, 4), (1, 4), late=0) == ["", "", "", ""]
    gather(address, 0, 1, 0.0)


def test_those_that_do_not_come_are_named_by_all_that_have(address):
    line = "processes 1, 3 of 4 did not come within 0.5 s (training.join_seconds)"
    assert outcomes(address, (0, 4), (2, 4), seconds=0.5) == [line, line]
    assert outcomes(address, (0, 2), seconds=0.2) == [line.replace("es 1, 3 of 4", " 1 of 2").replace("0.5", "0.2")]
    [alone] = outcomes(address, (1, 2), seconds=0.5)
    assert alone.startswith(f"process 0 of 2 did not come to {address} within 0.5 s (")


@pytest.mark.parametrize(
    "calls, line",
    [
        ([(0, 3), (1, 2)], "process 1 counts 2 processes, process 0 3; give all the same number"),
        ([(0, 3), (1, 3), (1, 3)], "two processes have number 1 of 3; give each its own"),
    ],
)
def test_numbers_that_contradict_each_other_are_told_of(address, calls, line):
    assert outcomes(address, *calls, seconds=3.0)[0] == line


def test_one_that_came_and_went_is_missing_and_strangers_are_nobody(address):
    host, port = address.split(":")

    def visit() -> None:
        for words in (f"{GREETING} 1 3\n", "GET / HTTP/1.1\n", f"{GREETING} x y\n"):
            for _ in range(50):
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0) as guest:
                    guest.sendall(words.encode())
                    break
                time.sleep(0.05)

    stranger = threading.Thread(target=visit)
    stranger.start()
    line = "process 1 of 3 did not come within 1.5 s (training.join_seconds)"
    assert outcomes(address, (0, 3), (2, 3), seconds=1.5, late=2) == [line, line]
    stranger.join()


def test_an_address_that_is_taken_is_named(address):
    host, port = address.split(":")
    with socket.create_server(("", int(port))), pytest.raises(UsageError, match=f"{address}: process 0 cannot listen"):
        gather(address, 0, 2, 1.0)
