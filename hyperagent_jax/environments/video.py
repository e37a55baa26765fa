"""Recordings of games as GIF files."""

from collections.abc import Sequence
import os
import pathlib
import types

import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import files

# An agent's step is four frames of 1/60 s; GIF measures time in hundredths of a second.
_MILLISECONDS = 70
_SCALE = 2


def require_pillow() -> types.ModuleType:
    """Returns the library that writes GIFs; raises an error that says how to install it if it is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        advice = "pip install 'hyperagent_jax[atari]'"
        raise errors.UserError(f"pillow, which writes GIFs, is not installed: {advice}") from error
    return Image


def write_gif(path: str | os.PathLike, pictures: Sequence[np.ndarray]) -> None:
    """Writes a sequence of images [height, width, 3], enlarged by a factor of two."""
    pillow = require_pillow()
    images = [
        pillow.fromarray(np.repeat(np.repeat(picture, _SCALE, axis=0), _SCALE, axis=1)).quantize(64)
        for picture in pictures
    ]
    with files.replacing(pathlib.Path(path), "w+b") as f:
        images[0].save(
            f,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=_MILLISECONDS,
            loop=0,
            optimize=True,
        )
