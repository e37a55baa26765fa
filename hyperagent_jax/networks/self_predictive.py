"""BBF's network: a latent, dueling return distributions on it, and a model that predicts later latents."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import noisy
from hyperagent_jax.networks import torsos

_XAVIER = nn.initializers.xavier_uniform()


class LatentModel(nn.Module):
    """Predicts the latent after an action; convolutions for latents [h, w, channels], dense layers for [H].

    Attributes:
        num_actions: number of actions.
    """

    num_actions: int

    @nn.compact
    def __call__(self, latent: types.Array, action: types.Array) -> types.Array:
        """Maps a latent and an action to a latent of the same shape, scaled to [0, 1]."""
        code = jnp.broadcast_to(nn.one_hot(action, self.num_actions), (*latent.shape[:-1], self.num_actions))
        x, channels = jnp.concatenate([latent, code], axis=-1), latent.shape[-1]
        for i in range(2):
            name = f"layer_{i}"
            if latent.ndim == 3:
                x = nn.Conv(channels, (3, 3), kernel_init=_XAVIER, name=name)(x)
            else:
                x = nn.Dense(channels, kernel_init=_XAVIER, name=name)(x)
            x = nn.relu(x)
        return torsos.min_max_normalize(x)


class SelfPredictiveNetwork(NamedTuple):
    """A network and the functions for its self-prediction.

    Attributes:
        network: the network with return distributions, without index and prior.
        predict: maps (params, observation, actions [K]) to predictions [K, width] of the following projections.
        project: maps (params, observation) to the observation's projection [width].
    """

    network: epistemic.EpistemicNetwork
    predict: Callable[[types.Params, Any, types.Array], types.Array]
    project: Callable[[types.Params, Any], types.Array]


def make_self_predictive_network(
    torso: nn.Module, num_actions: int, observation: Any, *, width: int, num_atoms: int = 51, v_max: float = 10.0
) -> SelfPredictiveNetwork:
    """Builds BBF's network.

    Args:
        torso: maps an observation to a latent [h, w, channels] or [H] in [0, 1].
        num_actions: number of actions.
        observation: an example observation.
        width: width of the projection, the only hidden layer, which values and predictions share.
        num_atoms: number of atoms.
        v_max: atoms are evenly spaced in [-v_max, v_max].
    """
    checks.require_num_actions(num_actions)
    checks.require_finite(v_max=v_max)
    observation = checks.example_observation(observation)
    model, head = LatentModel(num_actions), noisy.DenseHead((), num_actions, num_atoms, "shared", "none", 0.0)
    projection, predictor = (nn.Dense(width, kernel_init=_XAVIER) for _ in range(2))
    index, atoms = indices.no_index(), np.linspace(-v_max, v_max, num_atoms, dtype=np.float32)
    parts = {"torso": torso, "transition": model, "projection": projection, "predictor": predictor}

    def init(key: types.PRNGKey) -> types.Variables:
        keys = {name: types.fold_in_tag(key, name) for name in (*parts, "head")}
        latent, variables = torso.init_with_output(keys["torso"], observation)
        hidden = jnp.zeros(width)
        params = {
            "torso": variables["params"],
            "transition": model.init(keys["transition"], latent, jnp.zeros((), jnp.int32))["params"],
            "projection": projection.init(keys["projection"], latent.reshape(-1))["params"],
            "predictor": predictor.init(keys["predictor"], hidden)["params"],
            "head": head.init(keys["head"], hidden, None, jnp.zeros(0))["params"],
        }
        return types.Variables(params, ())

    def apply(name: str, params: types.Params, *inputs: Any) -> Any:
        return torsos.apply_linen(parts[name], params[name], *inputs)

    def project(params: types.Params, o: Any) -> types.Array:
        return apply("projection", params, apply("torso", params, o).reshape(-1))

    def posterior(params: types.Params, o: Any, prior_belief: types.Array) -> types.Array:
        del prior_belief
        return nn.relu(project(params, o))

    def distribution(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        return torsos.apply_linen(head, params["head"], belief, None, index)

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        return jax.nn.softmax(distribution(params, belief, index)) @ jnp.asarray(atoms)

    def predict(params: types.Params, o: Any, actions: types.Array) -> types.Array:
        latent, predictions = apply("torso", params, o), []
        for k in range(actions.shape[0]):
            latent = apply("transition", params, latent, actions[k])
            projected = apply("projection", params, latent.reshape(-1))
            predictions.append(apply("predictor", params, projected))
        return jnp.stack(predictions)

    network = epistemic.EpistemicNetwork(
        init, lambda prior, o: jnp.zeros(0), posterior, value, index, False, observation, distribution, atoms
    )
    return SelfPredictiveNetwork(network, predict, project)


class NormalizedTorso(nn.Module):
    """A torso whose features are scaled to [0, 1] per example, as BBF's latent is.

    Attributes:
        torso: the torso.
    """

    torso: nn.Module

    def __call__(self, observation: Any) -> types.Array:
        """Maps an observation to features [H]."""
        return torsos.min_max_normalize(self.torso(observation))


def hidden_widths(hidden_sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Splits layer widths into those of the torso and that of the projection."""
    return tuple(hidden_sizes[:-1]) or tuple(hidden_sizes), hidden_sizes[-1]
