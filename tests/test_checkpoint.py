"""Checkpoints: exact round trips, atomic replacement, clear refusals."""

import threading
import time
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax import host_memory
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

    def full_disk(file, arrays):
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full_disk)
    with pytest.raises(checkpoint.CheckpointError, match="No space left on device"):
        checkpoint.save(path, {"x": jnp.ones(2)}, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load_facts(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_other_trees_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.zeros(2)}, {})
    with pytest.raises(checkpoint.CheckpointError, match=r"\['x'\] is float32\[2\], expected float32\[3\]"):
        checkpoint.load(path, {"x": jnp.zeros(3)})
    with pytest.raises(checkpoint.CheckpointError, match="a different agent or version"):
        checkpoint.load(path, {"y": jnp.zeros(2)})


def test_axes_that_older_versions_kept_apart(tmp_path):
    path, apart = tmp_path / "a.npz", jnp.arange(24.0).reshape(2, 3, 4)
    checkpoint.save(path, {"x": apart}, {})
    np.testing.assert_array_equal(checkpoint.load(path, {"x": jnp.zeros((2, 12))})["x"], apart.reshape(2, 12))
    for shape in ((6, 4), (2, 11), (2, 4, 3), (2, 3, 2, 2), ()):
        with pytest.raises(checkpoint.CheckpointError, match="has a different configuration"):
            checkpoint.load(path, {"x": jnp.zeros(shape)})


def test_damage_inside_is_found(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.arange(1000)}, {})
    content = bytearray(path.read_bytes())
    content[1000] ^= 1  # in the middle of x
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
        checkpoint.load(path, {"x": jnp.arange(1000)})


def test_delete_leaves_nothing(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.zeros(2)}, {})
    checkpoint.save(path, {"x": jnp.zeros(2)}, {}, keep_previous=True)
    for name in ("a.npz.unfinished", "a.npz.host-17-ab12cd.unfinished"):  # of an older version, and of this one
        (tmp_path / name).write_text("killed while writing")
    assert len(list(tmp_path.iterdir())) == 4
    checkpoint.delete(path)
    checkpoint.delete(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "it is not an npz file"),
        (b"no zip file", "it is not an npz file"),
        (b"PK\x03\x04 cut short", "File is not a zip file"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, reason):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match=rf"cannot be read \({reason}\)"):
        checkpoint.load_facts(path)
    remark = checkpoint.newest(path)[1]
    assert remark.endswith(f"({reason}; kept as a.npz.damaged): the run starts from the beginning")


def test_facts_that_are_not_ours_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(2))
    with pytest.raises(checkpoint.CheckpointError, match="is not a checkpoint of this library"):
        checkpoint.load_facts(path)
    for facts, message in (("[1]", "is corrupt: move it away to restart the run"), ("{", "cannot be read")):
        np.savez(path, facts=np.array(facts))
        with pytest.raises(checkpoint.CheckpointError, match=message):
            checkpoint.load_facts(path)


def test_an_array_may_have_any_length(tmp_path):
    path = tmp_path / "a.npz"
    for length in (0, 3):
        checkpoint.save(path, {"actions": np.arange(length, dtype=np.int32)}, {})
        restored = checkpoint.load(path, {"actions": checkpoint.Unsized(np.int32)})["actions"]
        assert isinstance(restored, np.ndarray) and restored.tolist() == list(range(length))
    with pytest.raises(checkpoint.CheckpointError, match=r"\['actions'\] is int32, expected uint8"):
        checkpoint.load(path, {"actions": checkpoint.Unsized(np.uint8)})


def test_numpy_arrays_are_filled_in_place(tmp_path):
    path, ours = tmp_path / "a.npz", np.zeros(3, np.float32)
    checkpoint.save(path, {"x": np.arange(3, dtype=np.float32)}, {})
    assert checkpoint.load(path, {"x": ours})["x"] is ours
    assert ours.tolist() == [0.0, 1.0, 2.0]


def test_two_generations(tmp_path):
    """A damaged file is put aside; the one before it takes its place, and without one the run starts again."""
    path = tmp_path / "a.npz"
    for step in range(3):
        checkpoint.save(path, {"x": jnp.full(2, step)}, {"step": step}, keep_previous=True)
    before = tmp_path / "a.npz.previous"
    assert checkpoint.newest(path) == (path, "") and checkpoint.generations(path) == [path, before]
    assert [checkpoint.load_facts(file)["step"] for file in (path, before)] == [2, 1]
    path.write_bytes(path.read_bytes()[:-200])
    file, remark = checkpoint.newest(path)
    assert file == before and checkpoint.load(file, {"x": jnp.zeros(2, int)})["x"].tolist() == [1, 1]
    assert remark.startswith(f"checkpoint {path} is corrupt (") and remark.count("\n") == 0
    assert remark.endswith("; kept as a.npz.damaged): continuing from the previous one")
    assert checkpoint.newest(path) == (before, "")  # nothing to say twice
    before.write_text("")
    file, remark = checkpoint.newest(path)
    assert file is None and remark.endswith("the run starts from the beginning")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz.damaged", "a.npz.previous.damaged"]
    assert checkpoint.newest(path) == (None, "")


def test_any_flipped_bit_is_found_or_harmless(tmp_path):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"x": jnp.arange(40)}, {"step": 1})
    content = path.read_bytes()
    rng, found = np.random.default_rng(0), 0
    for place in rng.integers(len(content), size=300):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            checkpoint.check(path)
            restored = checkpoint.load(path, {"x": jnp.zeros(40, int)})["x"]
        except checkpoint.CheckpointError as error:
            found += 1
            assert "\n" not in str(error)
        else:  # in the mark of the digest, say; zip has sums of its own
            assert restored.tolist() == list(range(40)) and checkpoint.load_facts(path) == {"step": 1}
    assert found >= 280


def test_files_of_older_versions_have_no_digest(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **{"['x']": np.arange(3), "facts": np.array('{"step": 4}')})
    assert checkpoint.newest(path) == (path, "") and checkpoint.load_facts(path) == {"step": 4}
    assert checkpoint.load(path, {"x": np.zeros(3, int)})["x"].tolist() == [0, 1, 2]


def test_two_writers_of_one_file_leave_it_whole(tmp_path):
    """Threads here, processes in life: each has a name of its own for what it has not finished."""
    path, stop, problems = tmp_path / "a.npz", threading.Event(), []

    def write(value):
        while not stop.is_set():
            try:
                checkpoint.save(path, {"x": np.full(20_000, value)}, {}, keep_previous=True)
            except checkpoint.CheckpointError as error:
                problems.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    num_read, deadline = 0, time.monotonic() + 60
    while num_read < 60 and time.monotonic() < deadline:
        file, remark = checkpoint.newest(path)
        assert remark == ""
        try:
            values = checkpoint.load(file or path, {"x": np.zeros(20_000, int)})["x"]
        except checkpoint.CheckpointError as error:
            assert isinstance(error.__cause__, FileNotFoundError)  # just renamed
            continue
        assert (values == values[0]).all() and values[0] in (1, 2)
        num_read += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert num_read == 60 and not problems
    assert {file.name for file in tmp_path.iterdir()} == {"a.npz", "a.npz.previous"}


def test_claims_are_checked_before_memory_is_taken(tmp_path):
    """A header of 74 GB over a few bytes, and an array of zeros that would fill more memory than there is."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("['actions'].npy", "w") as f:
            np.lib.format.write_array_header_1_0(
                f, {"descr": "<i4", "fortran_order": False, "shape": (2 * 10**10,)}
            )
            f.write(b"1234")
        with archive.open("facts.npy", "w") as f:
            np.lib.format.write_array(f, np.array("{}"))
    assert checkpoint.load_facts(path) == {}
    with pytest.raises(checkpoint.CheckpointError, match=r"claims 80,000,000,000 bytes but has 4\)"):
        checkpoint.load(path, {"actions": checkpoint.Unsized(np.int32)})


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    checkpoint.save(path, {"actions": np.zeros(10**6, np.int32)}, {})
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 10**6)
    with pytest.raises(checkpoint.CheckpointError, match="needs 0.00 GB of memory, but 0.00 GB are free"):
        checkpoint.load(path, {"actions": checkpoint.Unsized(np.int32)})
