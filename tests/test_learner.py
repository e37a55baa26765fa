"""Tests of the learner, of its parameter stores and of the lazy Adam."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyperagent_jax import indices
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos

NUM_STATES = 40
BATCH_SIZE = 16
DIM = 3


@functools.cache
def make_network(table=True):
    return epistemic.make_hyper_network(
        torsos.OneHotMlp(NUM_STATES, (16, 8)), 2, indices.sphere(DIM), jnp.zeros((), jnp.int32),
        prior_scale=3.0, num_states=NUM_STATES if table else None,
    )


@functools.cache
def make_learner(optimizer="adam", target_period=4, table=True, beta=0.0, max_grad_norm=10.0, **kwargs):
    """A learner; cached, so that tests share what was compiled."""
    network = make_network(table)
    loss = losses.with_prior_regularization(losses.make_td_loss(network, sigma=0.1, **kwargs), beta)
    optimizer = {
        "adam": optimizers.Adam(max_grad_norm=max_grad_norm).transformation(),
        "lazy_adam": optimizers.LazyAdam(max_grad_norm=max_grad_norm),
    }[optimizer]
    learner = learner_lib.make_learner(network, loss, optimizer, target_period=target_period)
    return learner._replace(step=jax.jit(learner.step))


def make_transitions(rng, *shape, states=NUM_STATES):
    """Random transitions in numpy; a tenth of them terminates."""
    return types.Transition(
        o_tm1=rng.integers(0, states, shape).astype(np.int32),
        a_tm1=rng.integers(0, 2, shape).astype(np.int32),
        r_t=rng.normal(size=shape).astype(np.float32),
        discount_t=np.where(rng.random(shape) < 0.1, 0.0, 0.9).astype(np.float32),
        o_t=rng.integers(0, states, shape).astype(np.int32),
        z_t=rng.normal(size=(*shape, DIM)).astype(np.float32),
    )
