"""The one learner: Double-DQN's update for any epistemic network, loss and optimiser."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import parameters
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic


class LearnerState(NamedTuple):
    """State of a learner.

    Attributes:
        store: online and target parameters and the optimiser's state (see parameters.py).
        prior: the fixed prior; never part of what is optimised.
        count: number of updates so far.
    """

    store: Any
    prior: types.Params
    count: types.Array


class Learner(NamedTuple):
    """Pure functions that train a network; all may be jitted and vmapped.

    Attributes:
        init: maps a key to a LearnerState.
        step: maps (state, batch, key) to (state, metrics): the `losses` of the transitions [B], which
            prioritised replays want, and the `loss`, their mean plus any regulariser and penalty.
        variables: maps a state to the network's Variables. Outside jit these are the state's own arrays: copy them
            before a step that donates the state.
        values: maps (state, observation, indices [n, M]) to Q-values [n, num_actions]; takes the prior's belief
            as a fourth argument if it is known.
        draw: maps (key, batch_size) to the random numbers of one step.
        update: `step` with those numbers instead of a key, for loops that draw many steps at once.
    """

    init: Callable[[types.PRNGKey], LearnerState]
    step: Callable[[LearnerState, types.Batch, types.PRNGKey], tuple[LearnerState, dict[str, types.Array]]]
    variables: Callable[[LearnerState], types.Variables]
    values: Callable[..., types.Array]
    draw: Callable[[types.PRNGKey, int], losses.LossNoise]
    update: Callable[[LearnerState, types.Batch, losses.LossNoise], tuple[LearnerState, dict[str, types.Array]]]


def make_learner(
    network: epistemic.EpistemicNetwork,
    loss: losses.Loss,
    optimizer: optax.GradientTransformation | optimizers.Adam,
    *,
    target_period: int = 4,
) -> Learner:
    """Makes a learner (Algorithm 2, option 1).

    Args:
        network: the network to train.
        loss: loss of one transition.
        optimizer: any optax optimiser, `optimizers.Adam`, or `LazyAdam` for networks on integer states.
        target_period: the target parameters become a copy of the online ones before every update
            whose number is a multiple of this.

    Returns:
        The Learner.
    """
    if target_period < 1:
        raise ValueError(f"target_period must be at least 1, got {target_period}")
    if isinstance(optimizer, optimizers.LazyAdam):
        if not loss.has_local_gradient:
            raise ValueError(
                "LazyAdam moves the rows at a batch's o_tm1 alone, which a regulariser, a penalty or a loss with "
                "gradients at o_t does not: use Adam"
            )
        params_like = jax.eval_shape(lambda: network.init(jax.random.key(0)).params)
        store = parameters.lazy_store(optimizer, target_period, params_like)
    else:
        if isinstance(optimizer, optimizers.Adam):
            optimizer = optimizer.transformation()
        store = parameters.dense_store(optimizer, target_period)

    def init(key):
        variables = network.init(key)
        return LearnerState(store.init(variables.params), variables.prior, jnp.zeros((), jnp.int32))

    def update(state, batch, noise):
        over_batch = jax.vmap(network.prior, (None, 0))
        prior_tm1, prior_t = batch.prior_tm1, batch.prior_t
        if prior_tm1 is None:
            prior_tm1 = over_batch(state.prior, batch.transitions.o_tm1)
        if prior_t is None:
            prior_t = over_batch(state.prior, batch.transitions.o_t)
        view = store.read(state.store, batch.transitions, state.count)

        def over_transitions(apply, online):
            per_transition = jax.vmap(apply, (view.axes, view.axes, 0, 0, 0, 0))
            return per_transition(online, view.target, view.transitions, prior_tm1, prior_t, noise)

        def with_regularizer(each, online):
            value = jnp.mean(each)
            if loss.regularizer is not None:
                value += loss.regularizer(online, batch.replay_size)
            return value

        def batch_loss(online):
            each = over_transitions(loss.apply, online)
            return with_regularizer(each, online), each

        def penalized_gradient(online):
            # With g the gradient of the mean value and H its Hessian, the gradient of |g|^2 is 2 H g, and H v is
            # how g moves along v. A pass back is linear in what it starts from, so its derivative at (parameters,
            # mean value) in the direction (v, loss) is H v plus the gradient of the loss. One forward derivative
            # of one pass back thus gives everything, where two passes back take four times as long.
            def loss_and_value(online):
                each, values = over_transitions(loss.apply_with_value, online)
                value = with_regularizer(each, online)
                return (value, jnp.mean(values)), (value, each)

            def pull_back(online, cotangents):
                _, transposed, aux = jax.vjp(loss_and_value, online, has_aux=True)
                return transposed(cotangents)[0], aux

            of_value, along, (value, each) = jax.linearize(pull_back, online, (0.0, 1.0), has_aux=True)
            gradient = along(optax.tree.scale(2 * loss.gradient_penalty, of_value), (1.0, 0.0))
            penalty = loss.gradient_penalty * optax.tree.norm(of_value, squared=True)
            return (value + penalty, each), gradient

        gradient_of_loss = jax.value_and_grad(batch_loss, has_aux=True)
        if loss.gradient_penalty:
            gradient_of_loss = penalized_gradient
        (value, each), gradient = gradient_of_loss(view.online)
        new_store = store.write(state.store, view, gradient, state.count)
        return LearnerState(new_store, state.prior, state.count + 1), {"loss": value, "losses": each}

    def step(state, batch, key):
        return update(state, batch, loss.draw(key, batch.transitions.a_tm1.shape[0]))

    def variables(state):
        return types.Variables(store.params(state.store, state.count), state.prior)

    def values(state, observation, indices, prior=None):
        params, local = store.params_at(state.store, observation, state.count)
        if prior is None:
            prior = network.prior(state.prior, observation)
        belief = network.posterior(params, local, prior)
        return jax.vmap(network.value, (None, None, 0))(params, belief, indices)

    return Learner(init, step, variables, values, loss.draw, update)
