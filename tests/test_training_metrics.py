"""Rows of metrics, TensorBoard events and the progress display."""

import io
import json
import struct

import pytest
import tiny_runs

from rove_jax.errors import UsageError
from rove_jax.training import metrics
from rove_jax.training.journal import Journal
from rove_jax.training.metrics import Clock, Metrics, Progress


def events(folder) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of every event of a folder, read record by record."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    found = []
    for path in sorted((folder / metrics.EVENTS).iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            found.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
            at += 16 + size
    return found


def test_rows_are_lines_of_json_and_events(tmp_path):
    written = Metrics(tmp_path, step=0)
    written.write({"step": 1, "loss": 2.5, "learning_rate": 0.5})
    assert json.loads((tmp_path / metrics.FILE).read_text()) == {"step": 1, "loss": 2.5, "learning_rate": 0.5}
    written.close()
    assert events(tmp_path)[-1] == (1, {"loss": 2.5, "learning_rate": 0.5})


def test_going_on_drops_what_comes_again(tmp_path):
    path = tmp_path / metrics.FILE
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    Metrics(tmp_path, step=2).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("line", [b"junk", b"[]", b'{"loss": 1.0}', b"\xff"])
def test_a_damaged_file_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(UsageError, match=f"{path}: is damaged"):
        metrics.read_rows(path)


def test_a_number_that_is_not_finite_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Metrics(tmp_path, step=0).write({"step": 1, "loss": float("nan")})


def test_pauses_are_not_training(monkeypatch):
    now = iter([0.0, 1.0, 2.0, 10.0, 15.0, 25.0])  # restart; wait from 1 to 2; pause from 10 to 15; measured at 25
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(now))
    clock = Clock(3)
    with clock.waiting():
        pass
    with clock.pausing():
        pass
    assert clock.measure(7, 100) == {"tokens_per_second": 20.0, "step_seconds": 5.0, "data_wait_share": 0.05}


def test_outside_a_terminal_a_line_comes_now_and_then(monkeypatch):
    stream = io.StringIO()
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    progress = Progress(step=0, steps=100, stream=stream)
    for step in range(1, 101):
        now[0] += 0.5
        progress.show(step, loss=1.0, tokens_per_second=1e4, validation_loss=1.25 if step == 50 else None)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 20/100: loss 1.0000, 10,000 tokens/s, 0:00:40 left"
    assert [line.split(":")[0] for line in lines] == [
        "step 20/100",
        "step 40/100",
        "step 50",
        "step 60/100",
        "step 80/100",
        "step 100/100",
    ]


@pytest.mark.parametrize(("stop_after", "total"), [(None, 100), (40, 40), (400, 100)])
def test_the_time_left_is_that_to_where_training_pauses(stop_after, total, tmp_path):
    cfg = tiny_runs.settings(tiny_runs.SETTINGS.data, training={"steps": 100, "stop_after": stop_after})
    with Journal(tmp_path, cfg, 0, writer=False) as journal:
        assert journal.progress.steps == total and journal.steps == 100


def test_a_terminal_gets_a_bar(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    progress = Progress(step=10, steps=100, stream=stream)
    progress.show(60, loss=1.5, tokens_per_second=2e4)
    progress.bar.refresh()
    progress.close()
    last = stream.getvalue().split("\r")[-1]
    assert "60/100" in last and "loss 1.5000, 20,000 tokens/s" in last and "left" in last
