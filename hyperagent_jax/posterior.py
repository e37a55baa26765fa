"""Uncertainty of a network: mean, standard deviation and samples of its Q-values."""

from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic


def require_observations(network: epistemic.EpistemicNetwork, observations: Any, *, has_batch: bool) -> None:
    """Raises ValueError unless observations have the network's observation shape, after a batch axis if any.

    Args:
        network: the network.
        observations: one observation, or a batch of them.
        has_batch: whether it is a batch.
    """
    if network.observation is None:
        if has_batch and any(jnp.ndim(leaf) == 0 for leaf in jax.tree.leaves(observations)):
            raise ValueError("observations need a leading batch axis: use observations[None] for one observation")
        return
    structure: Any = jax.tree.structure(network.observation)
    if jax.tree.structure(observations) != structure:
        raise ValueError(f"observations must be like {checks.describe(network.observation)}, got {observations!r}")
    pairs = zip(jax.tree.leaves(observations), jax.tree.leaves(network.observation), strict=True)
    for found, one in pairs:
        shape = jnp.shape(found)
        if shape[1:] != one.shape or len(shape) != one.ndim + 1 if has_batch else shape != one.shape:
            expected = ", ".join(map(str, ["B"] * has_batch + list(one.shape)))
            hint = ": use observations[None] for one observation" if has_batch and shape == one.shape else ""
            raise ValueError(f"observations must be [{expected}], got {list(shape)}{hint}")


def _values(
    network: epistemic.EpistemicNetwork, variables: types.Variables, observations: Any, indices: types.Array
) -> types.Array:
    """Returns Q-values [n, B, num_actions] for indices [n, M]."""
    beliefs = jax.vmap(network.belief, (None, 0))(variables, observations)
    over_batch = jax.vmap(network.value, (None, 0, None))
    return jax.vmap(over_batch, (None, None, 0))(variables.params, beliefs, indices)


def sample(
    network: epistemic.EpistemicNetwork,
    variables: types.Variables,
    observations: Any,
    key: types.PRNGKey,
    num_samples: int,
) -> types.Array:
    """Samples Q-functions and evaluates them.

    Args:
        network: the network.
        variables: the network's variables, for example `learner.variables(state)`.
        observations: a batch of observations [B, ...].
        key: random key.
        num_samples: number of functions; each uses one index for all observations.

    Returns:
        Q-values [num_samples, B, num_actions].
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    require_observations(network, observations, has_batch=True)
    return _values(network, variables, observations, network.index.sample(key, (num_samples,)))


def mean_and_std(
    network: epistemic.EpistemicNetwork,
    variables: types.Variables,
    observations: Any,
    *,
    num_samples: int | None = None,
    key: types.PRNGKey | None = None,
) -> tuple[types.Array, types.Array]:
    """Returns the mean and the standard deviation of Q-values over the index.

    Both are exact for networks that are linear in an isotropic index (mu and sqrt(c) |m| for Q = mu + m^T xi with
    E[xi xi^T] = c I) and for indices with finitely many values, such as the members of an ensemble. Other networks
    need samples.

    Args:
        network: the network.
        variables: the network's variables, for example `learner.variables(state)`.
        observations: a batch of observations [B, ...].
        num_samples: number of sampled indices, at least 2, if samples are needed.
        key: random key for sampling.

    Returns:
        The mean [B, num_actions] and the standard deviation [B, num_actions].
    """
    require_observations(network, observations, has_batch=True)
    second_moment = network.index.second_moment
    beliefs = jax.vmap(network.belief, (None, 0))(variables, observations)
    coefficients = network.coefficients(beliefs)
    if coefficients is not None and network.index.is_isotropic and second_moment is not None:
        variance = second_moment * jnp.sum(coefficients[..., :-1] ** 2, axis=-1)
        return coefficients[..., -1], jnp.sqrt(variance)
    if network.index.support is not None:
        values = _values(network, variables, observations, jnp.asarray(network.index.support))
        return jnp.mean(values, axis=0), jnp.std(values, axis=0)
    if key is None or num_samples is None or num_samples < 2:
        raise ValueError(
            "mean and standard deviation of this network have no closed form: give a key and num_samples >= 2"
        )
    values = sample(network, variables, observations, key, num_samples)
    return jnp.mean(values, axis=0), jnp.std(values, axis=0, ddof=1)


def mean(network: epistemic.EpistemicNetwork, variables: types.Variables, observation: Any) -> types.Array:
    """Returns the mean Q-values [num_actions] of one observation over the index.

    If the mean has no closed form, this returns the values at index zero: those of an epinet's plain network, or
    of a hypermodel's mean weights.
    """
    require_observations(network, observation, has_batch=False)
    if network.is_linear and network.index.is_isotropic:
        return network.belief(variables, observation)[:, -1]
    if network.index.support is not None:
        belief, support = network.belief(variables, observation), jnp.asarray(network.index.support)
        return jnp.mean(jax.vmap(network.value, (None, None, 0))(variables.params, belief, support), axis=0)
    return network.apply(variables, observation, jnp.zeros(network.index.dim))
