"""Tests of how agents are put together."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import lazy_adam
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.networks import torsos

STATES = types.EnvironmentSpec(num_actions=2, observation_shape=(), num_states=30)
ARRAYS = types.EnvironmentSpec(num_actions=2, observation_shape=(3, 4))


def optimizer_for(num_states, regularizer=None, **settings):
    spec = STATES._replace(num_states=num_states)
    loss = losses.Loss(None, None, regularizer, is_semi_gradient=True)
    return base.make_optimizer(base.Config(**settings), spec, loss)


def test_auto_chooses_the_lazy_optimizer_where_it_applies():
    constants = dict(learning_rate=0.1, adam_b1=0.8, adam_b2=0.99, adam_eps=0.2, max_grad_norm=3.0)
    lazy = optimizer_for(1024, **constants)
    assert isinstance(lazy, lazy_adam.LazyAdam)
    assert tuple(lazy) == (0.1, 0.8, 0.99, 0.2, 3.0)
    for chosen in (
        optimizer_for(1023),
        optimizer_for(None),
        optimizer_for(1024, regularizer=lambda params, size: 0.0),
        optimizer_for(1024, adam_b1=0.99),
    ):
        assert not isinstance(chosen, lazy_adam.LazyAdam)
    assert isinstance(optimizer_for(2, optimizer="lazy_adam"), lazy_adam.LazyAdam)


def test_auto_does_not_trust_a_loss_of_ones_own():
    spec = STATES._replace(num_states=1024)
    assert not isinstance(base.make_optimizer(base.Config(), spec, losses.Loss(None, None)), lazy_adam.LazyAdam)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: agents.make_agent("hypoagent", None, STATES),
            "unknown agent 'hypoagent'; choose one of hyperagent",
        ),
        (lambda: agents.make_agent("ddqn", hyperagent.Config(), STATES), "must be made by agents.CONFIGS['ddqn']"),
        (lambda: hyperagent.Config(replay_capacity=1e5), "replay_capacity must be a whole number, got 100000.0"),
        (lambda: hyperagent.Config(hidden_sizes=64), "hidden_sizes must be one or more positive widths, got 64"),
        (lambda: hyperagent.Config(independent_prior=True), "independent_prior needs unit_prior: use both"),
        (lambda: agents.CONFIGS["hyperagent_rmax"](unit_prior=False), "use unit_prior=True"),
        (
            lambda: agents.CONFIGS["hyperagent_rmax"](network="epinet"),
            "in the index: use network=last_layer",
        ),
        (lambda: agents.make("hyperagent_rmax", STATES, prior_scale=0.0), "got prior_scale=0.0"),
        (lambda: losses.with_gradient_penalty(losses.Loss(None, None), 0.1), "needs a loss with apply_with_value"),
    ],
)
def test_misuse_is_one_clear_line(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    "side, torso", [(36, torsos.AtariConv(8)), (35, torsos.SmallConv((8,))), (2, torsos.Mlp((8,)))]
)
def test_torsos_of_pictures(side, torso):
    made, example = base.make_torso((8,), types.EnvironmentSpec(2, (side, 40, 3)))
    assert made == torso and made.init_with_output(jax.random.key(0), example)[0].shape == (8,)


def test_optimizer_errors():
    with pytest.raises(ValueError, match="needs integer observations: use optimizer=adam"):
        optimizer_for(None, optimizer="lazy_adam")
    with pytest.raises(ValueError, match="unknown optimizer 'sgd'; choose one of auto, adam, lazy_adam"):
        optimizer_for(2, optimizer="sgd")


@pytest.mark.parametrize("spec", [STATES, ARRAYS])
def test_settings_reach_the_parts(spec):
    config = hyperagent.Config(
        hidden_sizes=(8, 5),
        index_dim=3,
        index_distribution="cube",
        perturbation_distribution="gaussian",
        num_ois=2,
        loss="sampled",
        num_indices=7,
        resample_probability=0.25,
    )
    agent = hyperagent.make_agent(config, spec)
    params = jax.eval_shape(agent.network.init, jax.random.key(0)).params
    assert params["head"]["kernel"].shape == (5, 2, 4)
    noise = agent.learner.draw(jax.random.key(0), 6)
    assert (noise.indices.shape, noise.target_indices.shape) == ((6, 7, 3), (6, 2, 3))
    np.testing.assert_array_equal(np.abs(noise.indices), 1.0)
    assert (agent.network.index.name, agent.perturbation.name) == ("cube", "gaussian")
    # New indices inside an episode are for learning; evaluation keeps one per episode.
    actor_noise = agent.actor.draw(jax.random.key(0))
    assert actor_noise.indices.shape == (2, 3)
    current = jnp.full((2, 3), 9.0)
    for uniform, is_kept in ((0.2, False), (0.3, True)):
        actor_noise = actor_noise._replace(resample=uniform)
        renewed = agent.actor.next_indices(current, False, actor_noise)
        assert np.array_equal(renewed, current) == is_kept
        for is_first, expected in ((False, current), (True, actor_noise.indices)):
            followed = agent.evaluation_actor.next_indices(current, is_first, actor_noise)
            np.testing.assert_array_equal(followed, expected)
