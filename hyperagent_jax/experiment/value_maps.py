"""Value and uncertainty of every cell of DeepSea over training, and the files that hold them."""

from collections.abc import Callable
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import files
from hyperagent_jax import types
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.networks import epistemic
from hyperagent_jax.runners import core as core_lib

# Number of indices that the maps average over.
_NUM_INDICES = 64


def make_value_maps(agent: agents.Agent, size: int) -> Callable[[core_lib.SeedState], dict[str, np.ndarray]]:
    """Builds a function that gives mean and standard deviation over indices of every cell's greedy value.

    It maps a state to the maps named `value` and `uncertainty`, [size, size] each.
    """

    @jax.jit
    def greedy_values(variables: Any, key: types.PRNGKey) -> tuple[jax.Array, jax.Array]:
        indices = agent.network.index.sample(key, (_NUM_INDICES,))
        evaluated = agent.evaluation_index.sample(key, (_NUM_INDICES,))

        def at(cell: jax.Array) -> tuple[jax.Array, jax.Array]:
            belief = agent.network.belief(variables, cell)
            over_indices = jax.vmap(agent.network.value, (None, None, 0))
            q = over_indices(variables.params, belief, evaluated)
            coefficients = agent.network.coefficients(belief)
            if coefficients is None:
                sampled = over_indices(variables.params, belief, indices)
            else:  # the agent may act on other values
                sampled = jax.vmap(epistemic.evaluate_coefficients, (None, 0))(coefficients, indices)
            return jnp.mean(jnp.max(q, axis=-1)), jnp.std(jnp.max(sampled, axis=-1))

        return jax.vmap(at)(jnp.arange(size * size))

    def value_maps(state: core_lib.SeedState) -> dict[str, np.ndarray]:
        key = types.fold_in_tag(state.key, "maps")
        mean, std = greedy_values(agent.learner.variables(state.learner), key)
        return {"value": np.asarray(mean).reshape(size, size), "uncertainty": np.asarray(std).reshape(size, size)}

    return value_maps


class Recorder:
    """Records the maps of a run's seeds: before training, after evaluations 1, 2, 4, 8, ... and at the end.

    A posterior shrinks with the root of the number of visits, so equal ratios of time show equal changes.
    """

    def __init__(self, folder: str, agent: agents.Agent, size: int, eval_every: int, reached: int):
        """Continues the maps of the first `reached` interactions of a resumed run."""
        self._folder = folder
        self._value_maps = make_value_maps(agent, size)
        self._eval_every = eval_every
        self._reached = reached
        self._histories: dict[int, list[tuple[int, int, np.ndarray]]] = {}

    def is_due(self, interactions: int) -> bool:
        """Returns whether the evaluation after that many interactions is one to record."""
        number = interactions // self._eval_every
        return number & (number - 1) == 0

    def add(self, seed: int, state: core_lib.SeedState, interactions: int, episodes: int) -> None:
        """Records the maps of a seed and writes its file."""
        if seed not in self._histories:
            self._histories[seed] = self._read(seed)
        history, maps = self._histories[seed], self._value_maps(state)
        history.append((interactions, episodes, maps["uncertainty"]))
        path = read.maps_file(self._folder, seed)
        with files.writing(path):
            path.parent.mkdir(exist_ok=True)
        at_interactions, at_episodes, uncertainties = zip(*history, strict=True)
        with files.replacing(path, "w+b") as f:
            np.savez_compressed(
                f,
                allow_pickle=False,
                **maps,
                interactions=np.array(at_interactions),
                episodes=np.array(at_episodes),
                uncertainties=np.stack(uncertainties),
            )

    def _read(self, seed: int) -> list[tuple[int, int, np.ndarray]]:
        """Returns what an interrupted run recorded before its checkpoint; the rest will be recorded again."""
        found = read.read_maps(pathlib.Path(self._folder), seed) if self._reached else None
        if found is None or "uncertainties" not in found:
            return []
        history = zip(found["interactions"], found["episodes"], found["uncertainties"], strict=True)
        return [(int(steps), int(episodes), std) for steps, episodes, std in history if steps <= self._reached]
