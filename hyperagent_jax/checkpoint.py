"""Checkpoints: one pytree and a few facts about it in one file, replaced atomically, with a digest of it all."""

from collections.abc import Iterator
import contextlib
import dataclasses
import hashlib
import json
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

# The end of a file, as the comment of the zip archive that it is: the digest of all bytes before it.
_MARK = b"sha256:"
_DIGITS = 64
# Fast, and frames of games still become 26 times smaller.
_COMPRESSION = 1


class CheckpointError(errors.UserError):
    """A checkpoint that cannot be written or used."""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def save(path: str | os.PathLike, tree: Any, facts: dict[str, Any], keep_previous: bool = False) -> None:
    """Writes a checkpoint; an interrupted or failed write leaves the previous file as it was.

    Args:
        path: the file.
        tree: a pytree of arrays and random keys.
        facts: what identifies the run and where it stands; must be JSON.
        keep_previous: whether the file that this one replaces stays, for `newest` to fall back on.
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
    """The digest of an open file without its last bytes, in which it is written."""
    rest, digest = f.seek(0, os.SEEK_END) - _DIGITS, hashlib.sha256()
    f.seek(0)
    while rest > 0 and (block := f.read(min(rest, 1 << 20))):
        digest.update(block)
        rest -= len(block)
    return digest.hexdigest().encode()


def _previous(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.previous")


def generations(path: str | os.PathLike) -> list[pathlib.Path]:
    """Returns the files of a checkpoint and of the one before it that are there, the newest first."""
    path = pathlib.Path(path)
    return [file for file in (path, _previous(path)) if file.exists()]


def check(path: str | os.PathLike) -> None:
    """Refuses a file that is not as it was written; files of older versions have no digest."""
    with _readable(path), open(path, "rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - len(_MARK) - _DIGITS))
        mark, digest = (end := f.read())[: len(_MARK)], end[len(_MARK) :]
        if mark == _MARK and digest != _digest(f):
            raise ValueError("it is not as it was written")


def newest(path: str | os.PathLike) -> tuple[pathlib.Path | None, str]:
    """Returns the newest of the last two checkpoints that is whole, and a line if a newer one is not.

    Damaged ones are put aside, not deleted; None if nothing is left.
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
        return file, _remark(path, problems, "continuing from the one before it")
    return None, _remark(path, problems, "its run starts from the beginning")


def _remark(path: pathlib.Path, problems: list[str], consequence: str) -> str:
    return f"checkpoint {path} is damaged ({problems[0]}): {consequence}" if problems else ""


def delete(path: str | os.PathLike) -> None:
    """Removes a checkpoint, if it exists, the one before it and the partial files of interrupted writes."""
    path = pathlib.Path(path)
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)
    files.delete_unfinished(path)


@contextlib.contextmanager
def _readable(path: str | os.PathLike) -> Iterator[None]:
    try:
        yield
    except npz.UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({reason}): move it away to restart its run"
        ) from error


@contextlib.contextmanager
def _open(path: str | os.PathLike) -> Iterator[Any]:
    with _readable(path), np.load(path, allow_pickle=False) as arrays:
        yield arrays


def load_facts(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the facts of a checkpoint."""
    with _open(path) as arrays:
        if "facts" not in arrays:
            raise CheckpointError(f"{path} is not a checkpoint of this library")
        npz.check_size(arrays, "facts")
        facts = json.loads(str(arrays["facts"]))
    if not isinstance(facts, dict):
        raise CheckpointError(f"checkpoint {path} is corrupt: move it away to restart its run")
    return facts


@dataclasses.dataclass(frozen=True)
class Unsized:
    """Stands in `load`'s `like` for an array of a type whose shape only the checkpoint knows."""

    dtype: Any


@dataclasses.dataclass(frozen=True)
class Front:
    """Stands in `load`'s `like` for an array, in C order, of which the front was saved; that part is filled."""

    array: np.ndarray


def _restore(path: str | os.PathLike, arrays: Any, name: str, leaf: Any) -> Any:
    """Reads one array as `leaf` asks for it."""
    with arrays.zip.open(f"{name}.npy") as f:
        shape, is_fortran, dtype = npz.read_header(f)
        if isinstance(leaf, Unsized):
            if dtype != leaf.dtype:
                raise CheckpointError(f"checkpoint {path}: {name} is {dtype}, not {np.dtype(leaf.dtype)}")
            npz.check_size(arrays, name)
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
