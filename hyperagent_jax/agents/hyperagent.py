"""HyperAgent: posterior sampling over Q* with a last-layer linear hypermodel (ICML 2024)."""

import dataclasses
import math

import jax.numpy as jnp

from hyperagent_jax import actor
from hyperagent_jax import indices
from hyperagent_jax import learner
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """HyperAgent's own settings.

    Attributes:
        index_dim: dimension M of the index.
        index_distribution: distribution of the index.
        perturbation_distribution: distribution of the perturbation z of a transition.
        sigma: standard deviation of the perturbation sigma xi^T z, whatever the two distributions.
        loss: "exact" takes the expectation over the index in closed form, "sampled" averages over
            num_indices indices.
        num_indices: number of indices N per transition in the sampled loss.
        target_index: index of the bootstrap target: a new one per "transition", one "shared" by the
            batch, or "dependent", the loss's own.
        action_index: index to act with: one per "episode" or a new one per "step".
        resample_probability: chance per step that the acting index is redrawn inside an episode.
        num_ois: optimistic index sampling: act on and bootstrap from the best of this many indices.
        double_q: whether the online network selects the target's action.
        prior_scale: factor of the fixed prior.
        posterior_scale: factor of the learnable part.
        prior_std: scale of the fixed prior's last layer.
        prior_regularization: beta of the penalty beta / |D| |theta|^2.
    """

    index_dim: int = 4
    index_distribution: str = "sphere"
    perturbation_distribution: str = "scaled_sphere"
    sigma: float = 1e-4
    loss: str = "exact"
    num_indices: int = 20
    target_index: str = "transition"
    action_index: str = "episode"
    resample_probability: float = 0.01
    num_ois: int = 1
    double_q: bool = True
    prior_scale: float = 10.0
    posterior_scale: float = 1.0
    prior_std: float = 1.0
    prior_regularization: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self.require(1, "index_dim", "num_indices", "num_ois")
        self.require(0, "sigma", "prior_scale", "posterior_scale", "prior_std", "prior_regularization")
        self.require(0, "resample_probability", high=1)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Makes HyperAgent for an environment."""
    index = indices.make(config.index_distribution, config.index_dim)
    perturbation = indices.make(config.perturbation_distribution, config.index_dim)
    if perturbation.second_moment is None or index.second_moment is None:
        raise ValueError("hyperagent needs distributions with isotropic second moments, not bernoulli_mask")
    # E[(xi^T z)^2] = M c_xi c_z; 1 for the unit-sphere index with z on the sphere of radius sqrt(M).
    noise_std = math.sqrt(config.index_dim * index.second_moment * perturbation.second_moment)
    if spec.num_states is None:
        torso = torsos.Mlp(config.hidden_sizes)
        observation = jnp.zeros(spec.observation_shape)
    else:
        torso = torsos.OneHotMlp(spec.num_states, config.hidden_sizes)
        observation = jnp.zeros((), jnp.int32)
    network = epistemic.make_hyper_network(
        torso,
        spec.num_actions,
        index,
        observation,
        prior_scale=config.prior_scale,
        posterior_scale=config.posterior_scale,
        prior_std=config.prior_std,
        num_states=spec.num_states,
    )
    loss = losses.make_td_loss(
        network,
        kind=config.loss,
        sigma=config.sigma / noise_std,
        num_indices=config.num_indices,
        target_index=config.target_index,
        num_ois=config.num_ois,
        double_q=config.double_q,
    )
    loss = losses.with_prior_regularization(loss, config.prior_regularization)
    return base.Agent(
        config,
        network,
        learner.make_learner(
            network, loss, base.make_optimizer(config, spec, loss), target_period=config.target_period
        ),
        actor.make_actor(
            index,
            spec.num_actions,
            action_index=config.action_index,
            num_ois=config.num_ois,
            resample_probability=config.resample_probability,
        ),
        actor.make_actor(
            index, spec.num_actions, action_index=config.action_index, num_ois=config.num_ois
        ),
        perturbation,
    )
