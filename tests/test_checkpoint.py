"""Checkpoints: exact round trips, atomic replacement, clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax import prng


def _tree():
    return {
        "floats": jnp.array([1.5, -0.0, jnp.nan]),
        "bytes": jnp.arange(5, dtype=jnp.uint8),
        "keys": (jax.random.split(jax.random.key(3), 2), prng.hash_key(jax.random.key(4))),
        "count": jnp.int32(7),
    }


def _bits(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x).tobytes() for x in jax.tree.leaves(tree)]


def test_round_trip_is_exact(tmp_path):
    tree, path = _tree(), tmp_path / "deep" / "a.npz"
    checkpoint.save(path, tree, {"step": 3})
    restored = checkpoint.load(path, _tree())
    assert _bits(restored) == _bits(tree)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    assert restored["keys"][1].dtype == tree["keys"][1].dtype  # the cheap generator stays the cheap one
    assert checkpoint.load_facts(path) == {"step": 3}


def test_failed_write_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.zeros(2)}, {"step": 1})

    def full_disk(file, **arrays):
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.np, "savez", full_disk)
    with pytest.raises(checkpoint.CheckpointError, match="No space left on device"):
        checkpoint.save(path, {"x": jnp.ones(2)}, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load_facts(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_other_trees_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.zeros(2)}, {})
    with pytest.raises(checkpoint.CheckpointError, match=r"\['x'\] is float32\[2\], not float32\[3\]"):
        checkpoint.load(path, {"x": jnp.zeros(3)})
    with pytest.raises(checkpoint.CheckpointError, match="another agent or version"):
        checkpoint.load(path, {"y": jnp.zeros(2)})


def test_damage_inside_is_found(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.arange(1000)}, {})
    content = bytearray(path.read_bytes())
    content[2000] ^= 1  # in the middle of x
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
        checkpoint.load(path, {"x": jnp.arange(1000)})


def test_delete_leaves_nothing(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.zeros(2)}, {})
    (tmp_path / "a.npz.unfinished").write_text("killed while writing")
    checkpoint.delete(path)
    checkpoint.delete(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x03\x04 cut short"])
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
        checkpoint.load_facts(path)


def test_facts_that_are_not_ours_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(2))
    with pytest.raises(checkpoint.CheckpointError, match="is not a checkpoint of this library"):
        checkpoint.load_facts(path)
    for facts, message in (("[1]", "is corrupt: delete it to restart its run"), ("{", "cannot be read")):
        np.savez(path, facts=np.array(facts))
        with pytest.raises(checkpoint.CheckpointError, match=message):
            checkpoint.load_facts(path)


def test_an_array_may_have_any_length(tmp_path):
    path = tmp_path / "a.npz"
    for length in (0, 3):
        checkpoint.save(path, {"actions": np.arange(length, dtype=np.int32)}, {})
        restored = checkpoint.load(path, {"actions": checkpoint.Unsized(np.int32)})["actions"]
        assert isinstance(restored, np.ndarray) and restored.tolist() == list(range(length))
    with pytest.raises(checkpoint.CheckpointError, match=r"\['actions'\] is int32, not uint8"):
        checkpoint.load(path, {"actions": checkpoint.Unsized(np.uint8)})


def test_numpy_arrays_are_filled_in_place(tmp_path):
    path, ours = tmp_path / "a.npz", np.zeros(3, np.float32)
    checkpoint.save(path, {"x": np.arange(3, dtype=np.float32)}, {})
    assert checkpoint.load(path, {"x": ours})["x"] is ours
    assert ours.tolist() == [0.0, 1.0, 2.0]
