"""Checkpoints: one pytree and a few facts about it in one file, replaced atomically."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any
import zipfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import errors


class CheckpointError(errors.UserError):
    """A checkpoint that cannot be written or used."""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def save(path: str | os.PathLike, tree: Any, facts: dict[str, Any]) -> None:
    """Writes a checkpoint; an interrupted or failed write leaves the previous file as it was.

    Args:
        path: the file.
        tree: a pytree of arrays and random keys.
        facts: what identifies the run and where it stands; must be JSON.
    """
    path = pathlib.Path(path)
    arrays = {
        name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for name, leaf in _named_leaves(tree).items()
    }
    arrays["facts"] = np.array(json.dumps(facts))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(path)
    try:
        with open(unfinished, "wb") as f:
            np.savez(f, **arrays)  # type: ignore[arg-type]  # numpy's types mistake names for `allow_pickle`
            f.flush()
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write checkpoint {path}: {error.strerror or error}") from error


def _unfinished(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".unfinished")


def delete(path: str | os.PathLike) -> None:
    """Removes a checkpoint, if it exists, and the partial file of an interrupted write."""
    path = pathlib.Path(path)
    path.unlink(missing_ok=True)
    _unfinished(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _open(path: str | os.PathLike) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({error}): delete it to restart its run"
        ) from error


def load_facts(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the facts of a checkpoint."""
    with _open(path) as arrays:
        if "facts" not in arrays:
            raise CheckpointError(f"{path} is not a checkpoint of this library")
        facts = json.loads(str(arrays["facts"]))
    if not isinstance(facts, dict):
        raise CheckpointError(f"checkpoint {path} is corrupt: delete it to restart its run")
    return facts


class Unsized:
    """Stands in `load`'s `like` for an array whose shape only the checkpoint knows.

    Attributes:
        dtype: its type.
    """

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)


def load(path: str | os.PathLike, like: Any) -> Any:
    """Reads a checkpoint's tree.

    Args:
        path: the file.
        like: a pytree of arrays of the same structure, shapes and types, or `Unsized`. Its numpy arrays are filled
            in place, one at a time, so that large ones are in memory only once.

    Returns:
        The tree: numpy arrays where `like` has them, the others on the default device.
    """
    with _open(path) as arrays:
        expected = _named_leaves(like)
        found = set(arrays.files) - {"facts"}
        if found != set(expected):
            raise CheckpointError(
                f"checkpoint {path} belongs to another agent or version: it lacks "
                f"{sorted(set(expected) - found)[:3]} and has {sorted(found - set(expected))[:3]} instead"
            )

        def restore(name: str, leaf: Any) -> np.ndarray | jax.Array:
            array = arrays[name] if isinstance(leaf, np.ndarray | Unsized) else jnp.asarray(arrays[name])
            if _is_key(leaf):
                array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
            if isinstance(leaf, Unsized):
                if array.dtype != leaf.dtype:
                    raise CheckpointError(f"checkpoint {path}: {name} is {array.dtype}, not {leaf.dtype}")
                return array
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise CheckpointError(
                    f"checkpoint {path} has a different configuration: {name} is {array.dtype}{list(array.shape)},"
                    f" not {leaf.dtype}{list(leaf.shape)}"
                )
            if isinstance(leaf, np.ndarray):
                leaf[...] = array
                return leaf
            return array

        leaves = [restore(name, leaf) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
