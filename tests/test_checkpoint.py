"""Checkpoints: what is kept, what is refused, and what a failure leaves behind."""

import errno
import json
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_runs import SETTINGS, keep_programs, settings

from rove_jax import config, sharding, zoo
from rove_jax.errors import RunError, UsageError
from rove_jax.training import setup, state
from rove_jax.training.checkpoints import FOLDER, Checkpoints, Damaged, stored

CFG = settings(SETTINGS.data, training={"batch_size": 8})
RECORD = {"config": config.to_dict(CFG), "data_fingerprint": "d", "tokenizer_identity": "t"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return setup.make(CFG)


@pytest.fixture(scope="module")
def fresh(made):
    return state.create(CFG, made.optimizer, made.target)


def at(current: state.State, step: int) -> state.State:
    return current._replace(step=jnp.int32(step))


def saved(folder, current, losses: dict[int, float | None], *, keep_last: int = 2):
    """Save `current` at each step of `losses`, one call of the run for each."""
    for step, loss in losses.items():
        with Checkpoints(folder, keep_last=keep_last) as checkpoints:
            checkpoints.save(at(current, step), RECORD, loss)


@pytest.mark.parametrize("name", ["run", "ü |?#%20&'\"*"])
def test_what_is_restored_is_what_was_saved(name, tmp_path, made, fresh):
    folder = tmp_path / name  # tensorstore would take some characters of a URL otherwise
    moments = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), fresh.optimizer)
    saved(folder, fresh._replace(optimizer=moments), {7: None})
    with Checkpoints(folder) as checkpoints:
        found = checkpoints.restore(7, made.target)
    assert int(found.step) == 7
    for left, right in ((found.params, fresh.params), (found.optimizer, moments)):
        jax.tree.map(np.testing.assert_array_equal, left, right)
        assert jax.tree.map(lambda x: (x.dtype, x.sharding), left) == jax.tree.map(
            lambda x: (x.dtype, x.sharding), right
        )


def test_last_and_best_are_kept_by_separate_rules(tmp_path, fresh):
    """A loss that only gets worse: the best is the first, the last are the last, and a restart forgets neither."""
    saved(tmp_path, fresh, {1: 1.0, 2: 2.0, 3: None, 4: 4.0, 5: 5.0})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1, 4, 5]
        assert (checkpoints.latest(), checkpoints.best(), checkpoints.best_loss()) == (5, 1, 1.0)
    saved(tmp_path, fresh, {6: 0.5, 7: None, 8: 0.7}, keep_last=1)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [6, 8]


def test_a_run_without_validation_has_no_best(tmp_path, fresh):
    saved(tmp_path, fresh, {1: None, 2: None, 3: None})
    with Checkpoints(tmp_path) as checkpoints:
        assert (checkpoints.steps(), checkpoints.best()) == ([2, 3], None)
    with pytest.raises(UsageError, match="no checkpoint with a validation loss"):
        zoo.load_model(tmp_path, step="best")


@pytest.mark.parametrize(
    "model, words",
    [
        ({"layers": 3}, r"blocks.attention.key.bias: stored is float32\[2, 2, 8\], wanted is float32\[3, 2, 8\]"),
        ({"vocab_multiple": 704}, r"embedding: stored is float32\[320, 16\], wanted is float32\[704, 16\]"),
        ({"bias": False}, r"blocks.attention.key.bias: .*, wanted is nothing; give the model that it was saved with"),
    ],
)
def test_another_shape_is_refused_by_the_first_array_that_differs(tmp_path, fresh, model, words):
    saved(tmp_path, fresh, {1: None})
    target = setup.make(settings(CFG.data, base=CFG, model=model)).target
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(UsageError, match=words):
        checkpoints.restore(1, target)


def test_another_dtype_is_refused_not_cast(tmp_path, made, fresh):
    saved(tmp_path, fresh, {1: None})
    params = made.target.params
    norm = {
        **params["norm"],
        "scale": jax.ShapeDtypeStruct((16,), jnp.bfloat16, sharding=params["norm"]["scale"].sharding),
    }
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=r"params norm.scale: stored is float32\[16\], wanted is bfloat16\[16\]"):
            checkpoints.restore_params(1, {**params, "norm": norm})
        # What the check is for: Orbax alone would have cast.
    restore = ocp.args.StandardRestore({**params, "norm": norm})
    cast = ocp.StandardCheckpointHandler().restore(tmp_path / FOLDER / "1" / "params", args=restore)
    assert cast["norm"]["scale"].dtype == jnp.bfloat16


def test_weights_load_on_another_number_of_devices(tmp_path, fresh):
    """Saved from eight devices, loaded to one, and to two, from the folder alone."""
    cfg = settings(CFG.data, base=CFG, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    spread = jax.device_put(fresh, state.shardings(setup.make(cfg).target))
    saved(tmp_path, spread, {3: 1.5})
    loaded = zoo.load_model(tmp_path)
    assert (loaded.step, loaded.config, loaded.metadata["tokenizer_identity"]) == (3, CFG, "t")
    assert all(leaf.sharding.device_set == {jax.devices()[0]} for leaf in jax.tree.leaves(loaded.params))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, fresh.params)
    pair = zoo.load_model(tmp_path, step="best", mesh=sharding.make_mesh(config.Mesh(data=1, fsdp=2)))
    assert len(pair.params["embedding"].sharding.device_set) == 2
    assert not pair.params["embedding"].sharding.is_fully_replicated
    jax.tree.map(np.testing.assert_array_equal, pair.params, fresh.params)


def test_a_folder_without_a_run_or_a_step_is_refused(tmp_path, fresh):
    with pytest.raises(UsageError, match="no such folder"):
        zoo.load_model(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no checkpoints/"):
        zoo.load_model(tmp_path)
    saved(tmp_path, fresh, {1: None, 2: None})
    with pytest.raises(UsageError, match="checkpoints/9: no such checkpoint; there are 1, 2"):
        zoo.load_model(tmp_path, step=9)


def test_interrupted_writes_are_neither_read_nor_kept(tmp_path, fresh):
    saved(tmp_path, fresh, {1: None, 2: None})
    folder = tmp_path / FOLDER
    shutil.copytree(folder / "2", folder / "3.orbax-checkpoint-tmp")
    half_deleted = shutil.copytree(folder / "1", folder / "0")
    shutil.rmtree(half_deleted / "metadata")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1, 2]
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        assert checkpoints.latest() == 2
        checkpoints.save(at(fresh, 3), RECORD)
    assert sorted(entry.name for entry in folder.iterdir()) == ["0", "2", "3"], "0 is whose? It stays"


def test_a_damaged_checkpoint_is_named(tmp_path, made, fresh):
    saved(tmp_path, fresh, {1: None})
    folder = tmp_path / FOLDER / "1"
    shutil.rmtree(folder / "params" / "d", ignore_errors=True)
    shutil.rmtree(folder / "params" / "ocdbt.process_0")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(Damaged, match="1: damaged: params.*cannot be read"):
        checkpoints.restore(1, made.target)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 2, "sha256": "0"}', b"\xff", b"[" * 99_999], ids=len
)
def test_damaged_metadata_are_named(tmp_path, fresh, text):
    saved(tmp_path, fresh, {1: None})
    (tmp_path / "checkpoints" / "1" / "metadata" / "metadata").write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(Damaged, match="checkpoints/1: damaged: its metadata"):
        checkpoints.metadata(1)


def test_no_thread_is_left_behind_by_a_start_that_fails(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(UsageError, match="stop"), Checkpoints(tmp_path, keep_last=1):
        assert set(threading.enumerate()) <= before, "a thread of Orbax prints a traceback if the process ends under it"
        raise UsageError("stop")


def test_another_format_is_refused(tmp_path, fresh):
    saved(tmp_path, fresh, {1: None})
    file = tmp_path / FOLDER / "1" / "metadata" / "metadata"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(stored.sealed({**written, "format": 99})))
    with pytest.raises(UsageError, match="format 99; this version reads 2"):
        zoo.load_model(tmp_path)
    before_seals = {name: value for name, value in written.items() if name not in ("sha256", "arrays")}
    file.write_text(json.dumps({**before_seals, "format": 1}))
    with pytest.raises(UsageError, match="format 1; this version reads 2"):
        zoo.load_model(tmp_path)


def test_a_write_that_fails_in_the_background_is_heard_of(tmp_path, fresh, monkeypatch):
    """Neither taken for the latest afterwards, nor in the way of the next save."""
    from orbax.checkpoint import JsonCheckpointHandler

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    saved(tmp_path, fresh, {1: None})
    before = set(threading.enumerate())
    with monkeypatch.context() as patch, pytest.raises(RunError, match="No space left.*last good checkpoint is step 1"):
        patch.setattr(JsonCheckpointHandler, "_save_fn", full)
        saved(tmp_path, fresh, {2: None})
    # Other arrays of the failed save, which a real run ends with. (A thread is listed before it can be joined.)
    for thread in [t for t in set(threading.enumerate()) - before if t.ident is not None]:
        thread.join(10)
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        assert checkpoints.latest() == 1
        checkpoints.save(at(fresh, 2), RECORD)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1, 2]


def test_a_full_disk_is_seen_before_the_write(tmp_path, fresh, monkeypatch):
    saved(tmp_path, fresh, {1: None})
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(RunError, match="no space for a checkpoint.*step 1"):
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        saved(tmp_path, fresh, {2: None})
    assert sorted(entry.name for entry in (tmp_path / FOLDER).iterdir()) == ["1"]
