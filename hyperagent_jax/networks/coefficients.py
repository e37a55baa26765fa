"""Functions of an observation that return the coefficients of Q-values that are linear in an index."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import torsos


class CoefficientFn(NamedTuple):
    """A function of observation and index that is linear in the index; fixed priors are of this kind.

    Attributes:
        init: maps a key to parameters.
        apply: maps (parameters, observation) to coefficients [num_actions, M + 1], with the constant last.
    """

    init: Callable[[types.PRNGKey], types.Params]
    apply: Callable[[types.Params, Any], types.Array]


class TorsoAndHead(nn.Module):
    """A torso followed by an output layer."""

    torso: Any
    head: nn.Module

    def __call__(self, observation: Any) -> types.Array:
        """Maps an observation to coefficients [num_actions, M + 1]."""
        return self.head(self.torso(observation))


def with_head(torso: Any, head: nn.Module, observation: Any) -> CoefficientFn:
    """Puts a head on a torso; parameters are {"torso": ..., "head": ...}.

    Args:
        torso: any kind of torso (see torsos.py).
        head: flax.linen module that maps features [H] to coefficients [num_actions, M + 1].
        observation: an example observation.
    """
    if torsos.is_linen_or_function(torso):
        module = TorsoAndHead(torso, head)
        return CoefficientFn(
            lambda key: module.init(key, observation)["params"],
            lambda params, o: torsos.apply_linen(module, params, o),
        )
    features, functions = torsos.feature_shape(torso, observation), torsos.as_torso(torso)

    def init(key: types.PRNGKey) -> types.Params:
        return {
            "torso": functions.init(types.fold_in_tag(key, "torso"), observation),
            "head": head.init(types.fold_in_tag(key, "head"), jnp.zeros(features.shape, features.dtype))["params"],
        }

    def apply(params: types.Params, o: Any) -> types.Array:
        return torsos.apply_linen(head, params["head"], functions.apply(params["torso"], o))

    return CoefficientFn(init, apply)


def ensemble(torso: Any, num_actions: int, num_members: int, observation: Any) -> CoefficientFn:
    """Builds one plain network per coordinate of the index; parameters have a leading axis of members."""
    member = with_head(torso, heads.plain_linear(num_actions), observation)

    def init(key: types.PRNGKey) -> types.Params:
        return jax.vmap(member.init)(jax.random.split(key, num_members))

    def apply(params: types.Params, o: Any) -> types.Array:
        values = jax.vmap(lambda p: member.apply(p, o)[:, 0], out_axes=1)(params)
        return jnp.pad(values, ((0, 0), (0, 1)))

    return CoefficientFn(init, apply)


def mean_and_uncertainty(
    torso: Any, uncertainty_torso: Any, num_actions: int, index_dim: int, observation: Any
) -> CoefficientFn:
    """Makes two networks: a plain one gives the mean, one with a torso of its own what the index multiplies.

    Parameters are {"mean": ..., "uncertainty": ...}, each as `with_head` makes them. The output layer of the
    uncertainty starts at zero, so that a prior that is added to it is all there is at first.
    """
    mean = with_head(torso, heads.plain_linear(num_actions), observation)
    uncertainty = with_head(uncertainty_torso, heads.zero_linear(num_actions, index_dim), observation)

    def init(key: types.PRNGKey) -> types.Params:
        return {
            "mean": mean.init(types.fold_in_tag(key, "mean")),
            "uncertainty": uncertainty.init(types.fold_in_tag(key, "uncertainty")),
        }

    def apply(params: types.Params, o: Any) -> types.Array:
        parts = [uncertainty.apply(params["uncertainty"], o), mean.apply(params["mean"], o)]
        return jnp.concatenate(parts, axis=-1)

    return CoefficientFn(init, apply)
