"""Checkpoints: one pytree and a few facts about it in one file, replaced atomically."""

from collections.abc import Iterator
import contextlib
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Unsized:
    """Stands in `load`'s `like` for an array of a type whose shape only the checkpoint knows."""

    dtype: Any


@dataclasses.dataclass(frozen=True)
class Front:
    """Stands in `load`'s `like` for an array, in C order, of which the front was saved; that part is filled."""

    array: np.ndarray


def _read_header(f: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran's order, and type of the array in an npy file."""
    major, _ = np.lib.format.read_magic(f)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    return read(f)


def _restore(path: str | os.PathLike, arrays: Any, name: str, leaf: Any) -> Any:
    """Reads one array as `leaf` asks for it."""
    with arrays.zip.open(f"{name}.npy") as f:
        shape, is_fortran, dtype = _read_header(f)
        if isinstance(leaf, Unsized):
            if dtype != leaf.dtype:
                raise CheckpointError(f"checkpoint {path}: {name} is {dtype}, not {np.dtype(leaf.dtype)}")
            return arrays[name]
        is_front = isinstance(leaf, Front)
        own = leaf.array if is_front else jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        is_part = is_front and shape and shape[1:] == own.shape[1:] and shape[0] <= own.shape[0]
        if not (is_part or shape == own.shape) or dtype != own.dtype:
            raise CheckpointError(
                f"checkpoint {path} has a different configuration: {name} is {dtype}{list(shape)}, "
                f"not {own.dtype}{list(own.shape)}"
            )
        if not isinstance(own, np.ndarray):
            array = jnp.asarray(arrays[name])
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array
        view = own[: shape[0]] if is_part else own
        if is_fortran or not view.flags.c_contiguous:
            view[...] = arrays[name]
            return view
        # Straight into the array: large ones are in memory once only.
        rest = memoryview(view.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # arrays are buffers
        while len(rest):
            count = f.readinto(rest)
            if not count:
                raise EOFError(f"{name} ends early")
            rest = rest[count:]
        return view


def load(path: str | os.PathLike, like: Any) -> Any:
    """Reads a checkpoint's tree.

    Args:
        path: the file.
        like: a pytree of arrays of the same structure, shapes and types, or `Unsized`, or `Front`. Its numpy
            arrays are filled in place.

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
        leaves = [_restore(path, arrays, name, leaf) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
