"""The deep agent's network, exact loss and learner on one-hot features, for comparison with the closed form."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import indices
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import solvers


class Posterior(NamedTuple):
    """Q(s, a, xi) = mean + m~^T xi: `mean` [S, A] and `m` = m~, [S, A, M]."""

    mean: types.Array
    m: types.Array

    @property
    def covariance(self) -> types.Array:
        """Returns the covariance of the values of all pairs under a Gaussian index, [S A, S A]."""
        flat = self.m.reshape(-1, self.m.shape[-1])
        return flat @ flat.T


def transitions_of(
    mdp: mdps.DiscountedMdp, key: types.PRNGKey, num_transitions: int, index_dim: int
) -> types.Transition:
    """Samples transitions from random pairs, with perturbations on the unit sphere."""
    num_states, num_actions = mdp.rewards.shape
    state = jax.random.randint(types.fold_in_tag(key, "states"), (num_transitions,), 0, num_states)
    action = jax.random.randint(types.fold_in_tag(key, "actions"), (num_transitions,), 0, num_actions)
    logits = jnp.log(mdp.transitions[state, action])
    return types.Transition(
        o_tm1=state,
        a_tm1=action,
        r_t=mdp.rewards[state, action],
        discount_t=jnp.full(num_transitions, mdp.discount),
        o_t=jax.random.categorical(types.fold_in_tag(key, "next"), logits).astype(jnp.int32),
        z_t=indices.sphere(index_dim).sample(types.fold_in_tag(key, "z"), (num_transitions,)),
    )


class Problem(NamedTuple):
    """The problem to solve: data, an index mapping xi_k(s) [S, M] for the targets, and the prior's settings."""

    mdp: mdps.DiscountedMdp
    transitions: types.Transition
    index_map: types.Array
    config: hyperagent.Config


def make_problem(
    mdp: mdps.DiscountedMdp, key: types.PRNGKey, num_transitions: int, config: hyperagent.Config
) -> Problem:
    """Draws the data and the index mapping."""
    transitions = transitions_of(mdp, types.fold_in_tag(key, "data"), num_transitions, config.index_dim)
    index_map = indices.gaussian(config.index_dim).sample(types.fold_in_tag(key, "xi"), mdp.start.shape)
    return Problem(mdp, transitions, index_map, config)


def closed_form_posterior(problem: Problem, z_0: types.Array) -> Posterior:
    """Returns the fixed point of the stochastic Bellman iteration; z_0 [S, A, M] is a sample of the prior."""
    mdp, t, index_map, config = problem
    statistics = closed_form.no_statistics(mdp.rewards.shape)
    visits = statistics.visits.at[t.o_tm1, t.a_tm1].add(1.0)
    moves = statistics.moves.at[t.o_tm1, t.a_tm1, t.o_t].add(1.0)
    sums = jnp.zeros_like(z_0).at[t.o_tm1, t.a_tm1].add(t.z_t)
    m = config.sigma * (sums + math.sqrt(config.beta) * z_0) / (visits + config.beta)[..., None]
    noise = jnp.sum(m * index_map[:, None], -1)

    def operator(q: types.Array) -> types.Array:
        return closed_form.bellman(
            closed_form.Statistics(visits, moves),
            mdp.rewards,
            noise,
            jnp.max(q, -1),
            prior_mean=config.prior_mean,
            beta=config.beta,
            discount=mdp.discount,
        )

    return Posterior(solvers.fixed_point(operator, jnp.zeros_like(noise)) - noise, m)


def trained_posterior(
    problem: Problem, key: types.PRNGKey, num_updates: int, learning_rate: float
) -> tuple[Posterior, types.Array]:
    """Trains with `make_learner` on the exact loss; returns the posterior and the prior's sample z_0 [S, A, M].

    Every update uses all transitions, with the plain maximum of the paper's formula in the target, at the given
    index mapping instead of random indices. The prior has mean zero and norm sigma_0 everywhere.
    """
    mdp, transitions, index_map, config = problem
    num_states, num_actions = mdp.rewards.shape
    sigma_0 = config.sigma / math.sqrt(config.beta)
    network = epistemic.make_hyper_network(
        torsos.OneHot(num_states),
        num_actions,
        indices.gaussian(config.index_dim),
        jnp.int32(0),
        prior=priors.hyper_prior(sigma_0, unit_norm=True),
        num_states=num_states,
    )
    loss = losses.make_td_loss(
        network, kind="exact", sigma=config.sigma, perturbation=indices.sphere(config.index_dim), double_q=False
    )
    loss = losses.with_prior_regularization(loss, config.beta)
    rate = optax.cosine_decay_schedule(learning_rate, num_updates)
    learner = learner_lib.make_learner(network, loss, optax.adam(rate), target_period=10)
    size = transitions.a_tm1.shape[0]
    batch = types.Batch(transitions, jnp.float32(size))
    noise = losses.LossNoise(None, index_map[transitions.o_t][:, None])

    @jax.jit
    def train(state: types.LearnerState) -> types.LearnerState:
        return jax.lax.fori_loop(0, num_updates, lambda _, state: learner.update(state, batch, noise)[0], state)

    variables = learner.variables(train(learner.init(key)))
    beliefs = jax.vmap(network.belief, (None, 0))(variables, jnp.arange(num_states))
    prior = jax.vmap(network.prior, (None, 0))(variables.prior, jnp.arange(num_states))
    return Posterior(beliefs[..., -1], beliefs[..., :-1]), prior[..., :-1] / sigma_0
