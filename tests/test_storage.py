"""Paths of gs:// as paths of a disk, what is said if they cannot be reached, and who a folder there belongs to.

Against a server that answers as the storage service does. Not tried on the real one.
"""

import json
import time

import pytest
from reference import bucket as service

from rove_jax import storage
from rove_jax.errors import RunError, UsageError
from rove_jax.storage import bucket
from rove_jax.storage.lease import Lease


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder that is gs://bucket."""
    folder = tmp_path_factory.mktemp("cloud") / "bucket"
    with pytest.MonkeyPatch.context() as patch, service.reached(folder, patch):
        yield folder


def fault(root, words):
    (root / service.FAULT).write_text(words)


@pytest.fixture(autouse=True)
def works_again(root):
    yield
    (root / service.FAULT).unlink(missing_ok=True)


def test_a_path_is_as_on_a_disk(root):
    place = storage.place("gs:/bucket/a/run")  # as `Path` has it
    assert str(place) == "gs://bucket/a/run" and storage.remote(place) and not place.exists() and not place.is_dir()
    (place / "b" / "c").write_text("text")
    storage.replace(place / "b.json", b"{}")
    (place.parent / "running").write_bytes(b"")  # begins alike, lies elsewhere
    assert (root / "a" / "run" / "b" / "c").read_text() == "text"
    assert sorted(entry.name for entry in place.iterdir()) == ["b", "b.json"] == sorted(storage.sizes(place))
    assert place.is_dir() and (place / "b").is_dir() and not (place / "b.json").is_dir() and (place / "b.json").exists()
    assert [path.name for path in place.glob("*.json")] == ["b.json"]
    (place / "b").rename(place / "d")
    assert (place / "d" / "c").read_text() == "text" and not (place / "b").exists()
    storage.remove(place)
    assert [entry.name for entry in place.parent.iterdir()] == ["running"]
    with pytest.raises(FileNotFoundError):
        (place / "b.json").read_bytes()


def test_a_long_list_comes_in_pages(root):
    names = [f"{number:03d}" for number in range(service.PAGE + 5)]
    (root / "long").mkdir()
    for name in names:
        (root / "long" / name).touch()
    assert sorted(storage.sizes(storage.place("gs://bucket/long"))) == names


@pytest.mark.parametrize(
    "name, words, kind, says",
    [
        ("gs://nobucket/run", "", UsageError, "gs://nobucket/run: there is no such bucket"),
        ("gs://bucket/run", "403", UsageError, "gs://bucket/run: not permitted .* storage.objectUser"),
        ("gs://bucket/run", "403 POST", UsageError, "gs://bucket/run: not permitted"),
        ("gs://bucket/run", "403 DELETE", UsageError, "gs://bucket/run: not permitted"),
        ("gs://bucket/run", "503", RunError, "gs://bucket/run: the storage does not answer"),
    ],
)
def test_what_is_wrong_with_a_bucket_is_said_in_a_line(root, name, words, kind, says):
    storage.check(storage.place("gs://bucket/new"), writes=True)
    assert not (root / "new").exists()
    if words:
        fault(root, words)
    with pytest.raises(kind, match=says) as caught:
        storage.check(storage.place(name), writes=True)
    assert "\n" not in str(caught.value)
    if not words or len(words.split()) == 2:
        storage.check(storage.place(name))  # reading is another matter


@pytest.mark.parametrize("words", ["403", "503"])
def test_what_cannot_be_reached_is_not_taken_for_absent(root, words):
    place = storage.place("gs://bucket/there")
    (place / "file").write_text("text")
    fault(root, words)
    for look in (place.exists, place.is_dir, (place / "file").exists, lambda: list(place.iterdir())):
        with pytest.raises(OSError) as caught:
            look()
        assert not isinstance(caught.value, FileNotFoundError)


def test_a_folder_is_one_process_s(root):
    place = storage.place("gs://bucket/mine/.lock")
    lease = Lease(place, seconds=0.1)
    assert json.loads((root / "mine" / ".lock").read_text())["seconds"] == 0.1
    with pytest.raises(UsageError, match="gs://bucket/mine: another process is training in it .process [0-9]+ on "):
        Lease(place, seconds=0.1)
    lease.check()
    lease.close()
    assert not place.exists()
    Lease(place, seconds=0.1).close()
    place.write_text("?")
    with pytest.raises(UsageError, match="mine/.lock: does not say who is at work"):
        Lease(place, seconds=0.1)


def test_a_dead_process_s_folder_goes_to_the_next_one_and_it_sees_that_if_it_lives(root):
    place = storage.place("gs://bucket/late/.lock")
    first = Lease(place, seconds=0.1)
    first.ended.set()  # as if it hung
    first.thread.join()
    began = time.monotonic()
    second = Lease(place, seconds=0.1)
    assert time.monotonic() - began >= 0.2  # more than one write of the first has been waited for
    first.ended.clear()
    with pytest.raises(RunError, match="gs://bucket/late: another process has taken this folder over"):
        first.check()
    first.close()
    second.check()  # what the first did at its end has changed nothing
    second.close()


def test_a_lease_bears_a_service_that_is_away_for_a_moment(root):
    lease = Lease(storage.place("gs://bucket/away/.lock"), seconds=0.05)
    fault(root, "503")
    with pytest.raises(OSError, match="does not answer"):
        lease.check()
    (root / service.FAULT).unlink()
    lease.check()
    lease.close()


def test_a_claim_is_the_first_one_s(root):
    place = storage.place("gs://bucket/claims/job")
    assert [bucket.claim(place, content) for content in "aba"] == ["a", "a", "a"]
