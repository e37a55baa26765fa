"""Losses as functions of arrays, for one transition, in the form of rlax."""

import chex
import jax
import jax.numpy as jnp

from hyperagent_jax import rows
from hyperagent_jax import types

# A setting that may be traced, so that it can be vmapped over.
Scalar = float | types.Array


def optimistic_td_error(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None = None,
) -> types.Array:
    """Calculates the TD error, optimistic over the indices of the target (eq. OIS of https://arxiv.org/abs/2402.10228).

    The target is the largest of the targets of K indices and has no gradient. A NaN in any of them makes the error
    NaN, but in a compiled program the gradient of a maximum of NaNs may be zero: see `propagate_nan`.

    Args:
        q_tm1: Q-value of the action taken at time t-1, a scalar.
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t, one row per target index, [K, num_actions].
        q_t_selector: Q-values that select the actions at time t (double Q-learning), [K, num_actions]; None for
            the plain maximum of the paper's formula.

    Returns:
        The TD error, a scalar.
    """
    chex.assert_rank([q_tm1, r_t, discount_t, q_t], [0, 0, 0, 2])
    chex.assert_type([q_tm1, r_t, discount_t, q_t], float)
    if q_t_selector is None:
        v_t = jnp.max(q_t, axis=-1)
    else:
        chex.assert_equal_shape([q_t, q_t_selector])
        v_t = jax.vmap(rows.of_action)(q_t, jnp.argmax(q_t_selector, axis=-1))
    return jnp.max(jax.lax.stop_gradient(r_t + discount_t * v_t) - q_tm1)


def exact_td_loss(
    coefficients_tm1: types.Array,
    a_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None = None,
    z_t: types.Array | None = None,
    sigma: Scalar = 0.0,
    second_moment: float = 1.0,
    residual: Scalar = 0.0,
) -> types.Array:
    """Calculates the expectation over the index xi of HyperAgent's loss (eq. 4 of https://arxiv.org/abs/2402.10228).

    For Q-values mu + m^T xi, E[xi] = 0, E[xi xi^T] = c I and a target y whose index is independent of xi,
    E[(y + sigma xi^T z - mu - m^T xi)^2] = (y - mu)^2 + c |sigma z - m|^2.

    With a residual, sigma becomes sigma + residual (y - mu), without a gradient: a multiplier bootstrap. Trained
    on n targets y_i with noise of standard deviation s, m becomes the average of (y_i - mu) z_i, and the spread of
    the values is s / sqrt(n), the error of the mean: zero where targets are not random.

    Args:
        coefficients_tm1: coefficients m and, in the last column, means mu of all actions, [num_actions, M + 1].
        a_tm1: action at time t-1, an integer. The loss is NaN when it is out of range.
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t, one row per target index, [K, num_actions].
        q_t_selector: Q-values that select the actions at time t, [K, num_actions]; None for the plain maximum.
        z_t: perturbation of the transition, [M]; may be None if sigma and residual are the number 0.
        sigma: factor of the perturbation.
        second_moment: c.
        residual: factor of the perturbation by the TD error.

    Returns:
        The loss, a scalar.
    """
    chex.assert_rank([coefficients_tm1, a_tm1, q_t], [2, 0, 2])
    chex.assert_type([coefficients_tm1, a_tm1, q_t], [float, int, float])
    # Only the action taken matters: select its row before applying any index.
    chosen = rows.of_action(coefficients_tm1, a_tm1)
    mean, coefficients = chosen[-1], chosen[:-1]
    reward = valid_reward(r_t, a_tm1, q_t)
    error = optimistic_td_error(mean, reward, discount_t, q_t, q_t_selector)
    if is_zero(sigma) and is_zero(residual):
        spread = -coefficients
    else:
        assert z_t is not None, "z_t is needed unless sigma and residual are the number 0"
        chex.assert_equal_shape([z_t, coefficients])
        spread = _noise_scale(sigma, residual, error) * z_t - coefficients
    return error**2 + second_moment * jnp.sum(spread**2)


def sampled_td_loss(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None = None,
    indices: types.Array | None = None,
    z_t: types.Array | None = None,
    sigma: Scalar = 0.0,
    residual: Scalar = 0.0,
) -> types.Array:
    """Calculates the average of HyperAgent's loss over N indices (eq. 6 of https://arxiv.org/abs/2402.10228).

    For one index xi it is [r + sigma xi^T z + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2. With a residual, sigma
    becomes sigma + residual times the average TD error over the indices, without a gradient, as in
    `exact_td_loss`.

    Args:
        q_tm1: Q-values of the action taken at time t-1, one per index, [N].
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t: one row per target index, [K, num_actions], or separate target
            indices for each index of the loss, [N, K, num_actions].
        q_t_selector: Q-values that select the actions at time t, like `q_t`; None for the plain maximum.
        indices: the indices xi, [N, M]; may be None if sigma and residual are the number 0.
        z_t: perturbation of the transition, [M]; may be None likewise.
        sigma: factor of the perturbation.
        residual: factor of the perturbation by the TD error.

    Returns:
        The loss, a scalar.
    """
    chex.assert_rank([q_tm1, r_t], [1, 0])
    if is_zero(sigma) and is_zero(residual):
        return jnp.mean(_td_errors(q_tm1, r_t, discount_t, q_t, q_t_selector) ** 2)
    assert indices is not None and z_t is not None, "indices and z_t are needed unless sigma and residual are 0"
    chex.assert_shape(indices, (q_tm1.shape[0], *jnp.shape(z_t)))
    scale = sigma
    if not is_zero(residual):
        scale = _noise_scale(sigma, residual, jnp.mean(_td_errors(q_tm1, r_t, discount_t, q_t, q_t_selector)))
    rewards = jax.vmap(lambda index: r_t + scale * jnp.dot(index, z_t))(indices)
    return jnp.mean(_td_errors(q_tm1, rewards, discount_t, q_t, q_t_selector) ** 2)


def masked_td_loss(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None,
    masks: types.Array,
) -> types.Array:
    """Calculates the loss of a bootstrapped ensemble (eq. q-loss-ensemble of https://arxiv.org/abs/2402.10228).

    It is the average over N members of mask [r + discount V(o_t) - Q(o_tm1, a_tm1)]^2. It also applies to N
    indices in place of members, whose masks are xi^T z.

    Args:
        q_tm1: Q-values of the action taken at time t-1, one per member, [N].
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t: each member's own, [N, 1, num_actions], or K rows shared by all
            members, of which the best counts, [K, num_actions].
        q_t_selector: Q-values that select the actions at time t, like `q_t`; None for the plain maximum.
        masks: bootstrap weights of the transition, one per member, [N].

    Returns:
        The loss, a scalar.
    """
    chex.assert_rank([q_tm1, r_t, masks], [1, 0, 1])
    chex.assert_equal_shape([q_tm1, masks])
    return jnp.mean(masks * _td_errors(q_tm1, r_t, discount_t, q_t, q_t_selector) ** 2)


def _td_errors(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None,
) -> types.Array:
    """Returns TD errors [N] for q_tm1 [N], one or N rewards, and targets [K, num_actions] with or without [N]."""
    targets = 0 if jnp.ndim(q_t) == 3 else None
    rewards = 0 if jnp.ndim(r_t) == 1 else None
    axes = (0, rewards, None, targets, None if q_t_selector is None else targets)
    return jax.vmap(optimistic_td_error, axes)(q_tm1, r_t, discount_t, q_t, q_t_selector)


def _noise_scale(sigma: Scalar, residual: Scalar, error: types.Array) -> Scalar:
    """Returns the factor of z: a constant plus a multiple of the TD error, which has no gradient here."""
    return sigma if is_zero(residual) else sigma + residual * jax.lax.stop_gradient(error)


def valid_reward(r_t: types.Array, a_tm1: types.Array, q_t: types.Array) -> types.Array:
    """Returns the reward, or NaN if the action is out of range, which indexing would not report."""
    return jnp.where((a_tm1 >= 0) & (a_tm1 < q_t.shape[-1]), r_t, jnp.nan)


def is_zero(value: Scalar) -> bool:
    """Returns whether a setting is statically known to be zero."""
    return not isinstance(value, jax.Array) and value == 0
