"""Checkpoints: a pytree and some facts about it in one file, which is replaced atomically and has a digest."""

from collections.abc import Iterator
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
from typing import Any
import zipfile

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import files
from hyperagent_jax import npz

# The start of a file, as of every zip archive.
_ZIP = b"PK\x03\x04"
# The end of a file, stored as the comment of the zip archive: the digest of all preceding bytes.
_MARK = b"sha256:"
_DIGITS = 64
# Fast, and still compresses Atari frames by a factor of 26.
_COMPRESSION = 1


class CheckpointError(errors.UserError):
    """A checkpoint that cannot be written or used."""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def save(path: str | os.PathLike, tree: Any, facts: dict[str, Any], keep_previous: bool = False) -> None:
    """Writes a checkpoint; an interrupted or failed write leaves the previous file unchanged.

    Args:
        path: the file.
        tree: a pytree of arrays and random keys.
        facts: the identity and progress of the run, as JSON.
        keep_previous: whether to keep the file that this one replaces, as a fallback for `newest`.
    """
    path = pathlib.Path(path)
    arrays = {
        name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for name, leaf in _named_leaves(tree).items()
    }
    arrays["facts"] = np.array(json.dumps(facts))
    try:
        with files.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path, "w+b", keep=_previous(path) if keep_previous else None) as f:
            _write(f, arrays)
    except errors.UserError as error:
        raise CheckpointError(str(error).replace("cannot write", "cannot write checkpoint", 1)) from error


def _write(f: Any, arrays: dict[str, np.ndarray]) -> None:
    with zipfile.ZipFile(f, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = _MARK + b"0" * _DIGITS
    f.flush()
    digest = _digest(f)
    f.seek(-_DIGITS, os.SEEK_END)
    f.write(digest)


def _digest(f: Any) -> bytes:
    """Returns the digest of an open file, excluding its last bytes, which store the digest."""
    rest, digest = f.seek(0, os.SEEK_END) - _DIGITS, hashlib.sha256()
    f.seek(0)
    while rest > 0 and (block := f.read(min(rest, 1 << 20))):
        digest.update(block)
        rest -= len(block)
    return digest.hexdigest().encode()


def _previous(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.previous")


def generations(path: str | os.PathLike) -> list[pathlib.Path]:
    """Returns the existing files of a checkpoint and of its predecessor, newest first."""
    path = pathlib.Path(path)
    return [file for file in (path, _previous(path)) if file.exists()]


def check(path: str | os.PathLike) -> None:
    """Raises an error if a file has changed since it was written; files of older versions have no digest."""
    with _readable(path), open(path, "rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - len(_MARK) - _DIGITS))
        mark, digest = (end := f.read())[: len(_MARK)], end[len(_MARK) :]
        if mark == _MARK and digest != _digest(f):
            raise ValueError("wrong digest")


def newest(path: str | os.PathLike) -> tuple[pathlib.Path | None, str]:
    """Returns the newer of the last two checkpoints that is intact, and a message if a newer one is corrupt.

    Corrupt checkpoints are renamed, not deleted. Returns None if none is intact.
    """
    path, problems = pathlib.Path(path), []
    for file in generations(path):
        try:
            check(file)
            load_facts(file)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # another process has just replaced it
                continue
            aside = file.with_name(f"{file.name}.damaged")
            with contextlib.suppress(OSError):
                os.replace(file, aside)
            problems.append(f"{error.__cause__ or error}; kept as {aside.name}")
            continue
        return file, _remark(path, problems, "continuing from the previous one")
    return None, _remark(path, problems, "the run starts from the beginning")


def _remark(path: pathlib.Path, problems: list[str], consequence: str) -> str:
    return f"checkpoint {path} is corrupt ({problems[0]}): {consequence}" if problems else ""


def delete(path: str | os.PathLike) -> None:
    """Deletes a checkpoint, if it exists, its predecessor and partial files of interrupted writes."""
    path = pathlib.Path(path)
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)
    files.delete_unfinished(path.parent, path.name)


@contextlib.contextmanager
def _readable(path: str | os.PathLike) -> Iterator[None]:
    try:
        yield
    except npz.UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({reason}): move it away to restart the run"
        ) from error


@contextlib.contextmanager
def _open(path: str | os.PathLike) -> Iterator[Any]:
    with _readable(path):
        with open(path, "rb") as f:
            if f.read(len(_ZIP)) != _ZIP:  # of which numpy would say how to unpickle it
                raise ValueError("it is not an npz file")
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays


def load_facts(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the facts of a checkpoint."""
    with _open(path) as arrays:
        if "facts" not in arrays:
            raise CheckpointError(f"{path} is not a checkpoint of this library")
        npz.check_size(arrays, "facts")
        facts = json.loads(str(arrays["facts"]))
    if not isinstance(facts, dict):
        why = ValueError("its facts are not a JSON object")
        raise CheckpointError(f"checkpoint {path} is corrupt: move it away to restart the run") from why
    return facts


@dataclasses.dataclass(frozen=True)
class Unsized:
    """Placeholder in the `like` of `load` for an array of known dtype whose shape only the checkpoint knows."""

    dtype: Any


@dataclasses.dataclass(frozen=True)
class Front:
    """Placeholder in the `like` of `load` for a C-ordered array of which only the front was saved."""

    array: np.ndarray


def _merges(shape: tuple[int, ...], merged: tuple[int, ...]) -> bool:
    """Whether the last axes of a shape become one in another, as in lazy Adam's rows of older versions."""
    if not len(shape) > len(merged) > 0:
        return False
    first = len(merged) - 1
    return shape[:first] == merged[:first] and math.prod(shape[first:]) == merged[first]


def _restore(path: str | os.PathLike, arrays: Any, name: str, leaf: Any) -> Any:
    """Reads one array in the form that `leaf` specifies."""
    with arrays.zip.open(f"{name}.npy") as f:
        shape, is_fortran, dtype = npz.read_header(f)
        if isinstance(leaf, Unsized):
            if dtype != leaf.dtype:
                raise CheckpointError(f"checkpoint {path}: {name} is {dtype}, expected {np.dtype(leaf.dtype)}")
            npz.check_size(arrays, name)
            return arrays[name]
        is_front = isinstance(leaf, Front)
        own = leaf.array if is_front else jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        is_part = is_front and shape and shape[1:] == own.shape[1:] and shape[0] <= own.shape[0]
        is_older = not isinstance(own, np.ndarray) and _merges(shape, own.shape)
        if not (is_part or is_older or shape == own.shape) or dtype != own.dtype:
            raise CheckpointError(
                f"checkpoint {path} has a different configuration: {name} is {dtype}{list(shape)}, "
                f"expected {own.dtype}{list(own.shape)}"
            )
        if not isinstance(own, np.ndarray):
            array = jnp.asarray(arrays[name].reshape(own.shape))
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array
        view = own[: shape[0]] if is_part else own
        if is_fortran or not view.flags.c_contiguous:
            view[...] = arrays[name]
            return view
        # Read directly into the array, so that large arrays are in memory only once.
        rest = memoryview(view.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # arrays are buffers
        while len(rest):
            count = f.readinto(rest)
            if not count:
                raise EOFError(f"{name} ends early")
            rest = rest[count:]
        return view


def load(path: str | os.PathLike, like: Any) -> Any:
    """Reads the pytree of a checkpoint.

    Args:
        path: the file.
        like: a pytree of the same structure, whose leaves are arrays of the same shapes and dtypes, or `Unsized`,
            or `Front`. Its numpy arrays are filled in place.

    Returns:
        The tree, with numpy arrays where `like` has them and all other arrays on the default device.
    """
    with _open(path) as arrays:
        expected = _named_leaves(like)
        found = set(arrays.files) - {"facts"}
        if found != set(expected):
            raise CheckpointError(
                f"checkpoint {path} belongs to a different agent or version: it lacks "
                f"{sorted(set(expected) - found)[:3]} and has {sorted(found - set(expected))[:3]} instead"
            )
        leaves = [_restore(path, arrays, name, leaf) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
