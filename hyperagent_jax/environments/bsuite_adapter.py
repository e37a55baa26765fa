"""bsuite's environments; the only file that imports them."""

from collections.abc import Callable
import functools
import inspect
import pathlib
import types as python_types
from typing import NamedTuple
import zlib

import dm_env
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import types

# Steps of the longest episode of each experiment, from its settings; reward noise and scale do not affect it.
_LONGEST_EPISODE: dict[str, Callable[[dict], int]] = {
    "bandit": lambda settings: 1,
    "cartpole": lambda settings: 1001,
    "cartpole_swingup": lambda settings: 1001,
    "catch": lambda settings: 9,
    "deep_sea": lambda settings: settings["size"],
    "deep_sea_stochastic": lambda settings: settings["size"],
    "discounting_chain": lambda settings: 100,
    "memory_len": lambda settings: settings["memory_length"] + 1,
    "memory_size": lambda settings: 3,
    "mnist": lambda settings: 1,
    "mountain_car": lambda settings: 1000,
    "umbrella_distract": lambda settings: 20,
    "umbrella_length": lambda settings: settings["chain_length"],
}


class MissingDataError(errors.UserError):
    """Raised if the data of an environment is not available on this machine."""


class Problem(NamedTuple):
    """The properties of a bsuite id that an agent needs.

    Attributes:
        spec: the EnvironmentSpec, with observations as returned by `observe`.
        observe: maps the environment's observations to those of the spec.
        num_episodes: number of episodes of the experiment.
        longest_episode: largest number of steps of an episode.
    """

    spec: types.EnvironmentSpec
    observe: Callable[[np.ndarray], types.HostArray]
    num_episodes: int
    longest_episode: int


def _bsuite() -> tuple[python_types.ModuleType, python_types.ModuleType]:
    try:
        import bsuite
        from bsuite import sweep
    except ImportError as error:
        raise errors.UserError("bsuite is not installed: pip install 'hyperagent_jax[bsuite]'") from error
    return bsuite, sweep


def _deep_sea_class() -> type:
    _bsuite()
    from bsuite.environments import deep_sea

    return deep_sea.DeepSea


def make_deep_sea(size: int, *, deterministic: bool, seed: int, mapping_seed: int) -> dm_env.Environment:
    """Creates bsuite's own Python DeepSea."""
    return _deep_sea_class()(size, deterministic=deterministic, seed=seed, mapping_seed=mapping_seed)


def cell(observation: np.ndarray) -> np.int32:
    """Returns the integer state of DeepSea's one-hot grid; 0 for the empty grid at the end of an episode."""
    return np.int32(observation.argmax())


def ids(text: str) -> tuple[str, ...]:
    """Returns the bsuite ids that a comma-separated list of ids, experiments, SWEEP and TESTING stands for."""
    _, sweep = _bsuite()
    experiments: dict[str, list[str]] = {}
    for bsuite_id in sweep.SWEEP:
        experiments.setdefault(bsuite_id.split(sweep.SEPARATOR)[0], []).append(bsuite_id)
    named = {"SWEEP": sweep.SWEEP, "TESTING": sweep.TESTING, **experiments}
    found: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in sweep.SETTINGS:
            found[name] = None
        elif name in named:
            found.update(dict.fromkeys(named[name]))
        else:
            experiment, _, number = name.partition(sweep.SEPARATOR)
            if experiment in experiments and number:
                last = experiments[experiment][-1]
                raise errors.UserError(f"unknown bsuite id {name!r}: the last id of {experiment} is {last}")
            raise errors.UserError(
                f"unknown bsuite id or experiment {name!r}; choose SWEEP, TESTING, an id such as deep_sea/0, "
                f"or one of {', '.join(experiments)}"
            )
    if not found:
        raise errors.UserError("no bsuite id given: use --bsuite_id=deep_sea/0, an experiment, TESTING or SWEEP")
    return tuple(found)


@functools.cache
def _mnist_problem() -> str:
    """Returns why bsuite cannot load the MNIST data set, which it downloads; empty if it can.

    Cached, because it may take long without a network.
    """
    from bsuite.utils import datasets

    try:
        datasets.load_mnist()
    except Exception as error:
        return f"the MNIST data set cannot be loaded: {error}"
    return ""


def make(bsuite_id: str, seed: int, csv_folder: str | pathlib.Path | None = None) -> dm_env.Environment:
    """Creates the environment of a bsuite id with bsuite's settings.

    If bsuite does not set the environment's seed, it is derived from the id and `seed`, so that runs are
    reproducible.

    Args:
        bsuite_id: the id.
        seed: seed of the run.
        csv_folder: folder in which bsuite's logging writes the id's csv file, replacing any; None for no log.
    """
    bsuite, sweep = _bsuite()
    experiment = bsuite_id.split(sweep.SEPARATOR)[0]
    settings = dict(sweep.SETTINGS[bsuite_id])
    load = bsuite.bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]
    if experiment == "deep_sea_stochastic":  # its loader takes no seed
        load = functools.partial(_deep_sea_class(), deterministic=False)
    parameter = inspect.signature(load).parameters.get("seed")
    if parameter is not None and settings.get("seed", parameter.default) in (None, parameter.empty):
        settings["seed"] = zlib.crc32(f"{bsuite_id} seed {seed}".encode())
    if experiment.startswith("mnist") and (problem := _mnist_problem()):
        raise MissingDataError(problem)
    environment = load(**settings)
    if csv_folder is None:
        return environment
    from bsuite.logging import csv_logging

    return csv_logging.wrap_environment(environment, bsuite_id, str(csv_folder), overwrite=True)


def last_logged(episodes: int) -> int:
    """Returns the last of the first `episodes` episodes for which bsuite's logging writes a row."""
    scale = 10 ** (len(str(episodes)) - 1)
    tenths = (10, 12, 14, 17, 20, 25, 30, 40, 50, 60, 70, 80, 90)
    logged = [scale * tenth // 10 for tenth in tenths if scale * tenth % 10 == 0]
    return max(episode for episode in logged if episode <= episodes)


def csv_file(bsuite_id: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns the file to which bsuite's logging writes the rows of an id."""
    from bsuite.logging import csv_logging

    _, sweep = _bsuite()
    name = bsuite_id.replace(sweep.SEPARATOR, csv_logging.SAFE_SEPARATOR)
    return folder / f"{csv_logging.BSUITE_PREFIX}{name}.csv"


def num_episodes(bsuite_id: str) -> int:
    """Returns the number of episodes of an id's experiment."""
    return _bsuite()[1].EPISODES[bsuite_id]


@functools.cache
def problem(bsuite_id: str) -> Problem:
    """Returns the properties of a bsuite id that an agent needs."""
    _, sweep = _bsuite()
    experiment = bsuite_id.split(sweep.SEPARATOR)[0].removesuffix("_noise").removesuffix("_scale")
    settings = sweep.SETTINGS[bsuite_id]
    environment = make(bsuite_id, seed=0)
    num_actions, shape = environment.action_spec().num_values, environment.observation_spec().shape
    if experiment in ("deep_sea", "deep_sea_stochastic"):
        spec = types.EnvironmentSpec(num_actions, (), settings["size"] ** 2)
        observe: Callable[[np.ndarray], types.HostArray] = cell
    else:
        spec, observe = types.EnvironmentSpec(num_actions, shape), np.asarray
    return Problem(spec, observe, num_episodes(bsuite_id), _LONGEST_EPISODE[experiment](settings))
