"""Temporal-difference losses of HyperAgent (https://arxiv.org/abs/2402.10228) and of related systems.

Three layers, each usable without the ones below it:
  * `optimistic_td_error`, `exact_td_loss`, `sampled_td_loss`, `masked_td_loss`: functions of arrays for one
    transition, in the form of rlax.
  * `make_td_loss` and the `with_*` functions: a `Loss` of one transition for an `EpistemicNetwork`.
  * `batch_loss` and `value_and_grad`: a `Loss` over a batch, with regulariser and gradient penalty.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple, Protocol, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import indices as indices_lib
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic

LOSSES = ("exact", "sampled", "enumerated")
TARGET_INDICES = ("transition", "shared", "dependent", "all")

# A setting that may be traced, so that it can be vmapped over.
Scalar = float | types.Array


class LossNoise(NamedTuple):
    """The random numbers of one update.

    Attributes:
        indices: indices xi of the sampled loss, [B, N, M]; None for the others.
        target_indices: indices xi^- of the bootstrap target, [B, num_ois, M]; None when the target uses the
            indices of the loss or all values of the index.
    """

    indices: types.Array | None
    target_indices: types.Array | None


class DrawFn(Protocol):
    """Draws the random numbers of a batch."""

    def __call__(self, key: types.PRNGKey, batch_size: int, /) -> LossNoise:
        """Returns the LossNoise of a batch; every array has a leading batch axis."""


class ApplyFn(Protocol):
    """The loss of one transition."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: LossNoise,
        /,
    ) -> types.Array:
        """Returns the loss, a scalar; priors are the fixed prior's beliefs at o_tm1 and o_t."""


class ApplyWithValueFn(Protocol):
    """The loss of one transition and the Q-value it is about."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: LossNoise,
        /,
    ) -> tuple[types.Array, types.Array]:
        """Returns the loss and the Q-value of the action taken, averaged over the indices of the loss."""


class RegularizerFn(Protocol):
    """A term of the parameters that is added once per batch."""

    def __call__(self, params: types.Params, replay_size: types.Array | None, /) -> types.Array:
        """Returns the term, a scalar."""


class Loss(NamedTuple):
    """A loss of one transition.

    Attributes:
        draw: maps (key, batch_size) to the LossNoise of a batch.
        apply: maps (params, target_params, transition, prior_tm1, prior_t, noise) of one transition to its loss.
        regularizer: maps (params, replay_size) to a scalar, added once per batch; or None.
        apply_with_value: like `apply`, but returns (loss, Q-value of the action taken, averaged over the indices
            of the loss), which a gradient penalty needs; or None.
        gradient_penalty: factor of the squared norm of the gradient of the batch's mean of those values.
        is_semi_gradient: whether the online network has a gradient at o_tm1 only, the target being held fixed.
        perturbation: the distribution that the z_t of transitions must be drawn from:
            `loss.perturbation.sample(key, (batch_size,))`; None when the loss has no perturbation.
    """

    draw: DrawFn
    apply: ApplyFn
    regularizer: RegularizerFn | None = None
    apply_with_value: ApplyWithValueFn | None = None
    gradient_penalty: float = 0.0
    is_semi_gradient: bool = False
    perturbation: indices_lib.IndexDistribution | None = None

    @property
    def has_local_gradient(self) -> bool:
        """Whether parameters that no o_tm1 of a batch uses have no gradient and add to none."""
        return self.is_semi_gradient and self.regularizer is None and not self.gradient_penalty


# Functions of arrays, for one transition.


def optimistic_td_error(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None = None,
) -> types.Array:
    """Calculates the TD error, optimistic over the indices of the target (eq. OIS of https://arxiv.org/abs/2402.10228).

    The target is the largest of the targets of K indices and has no gradient. A NaN in any of them makes the error
    NaN, but a compiled program may take the gradient of a maximum of NaNs for zero: see `propagate_nan`.

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
    q_tm1, a_tm1 = q_tm1[None], jnp.zeros((), jnp.int32)
    if q_t_selector is None:
        errors = jax.vmap(rlax.q_learning, (None,) * 4 + (0,))(q_tm1, a_tm1, r_t, discount_t, q_t)
    else:
        chex.assert_equal_shape([q_t, q_t_selector])
        errors = jax.vmap(rlax.double_q_learning, (None,) * 4 + (0, 0))(
            q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector
        )
    return jnp.max(errors)


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
) -> types.Array:
    """Calculates the expectation over the index xi of HyperAgent's loss (eq. 4 of https://arxiv.org/abs/2402.10228).

    For Q-values mu + m^T xi, E[xi] = 0, E[xi xi^T] = c I and a target y whose index is independent of xi,
    E[(y + sigma xi^T z - mu - m^T xi)^2] = (y - mu)^2 + c |sigma z - m|^2.

    Args:
        coefficients_tm1: coefficients m and, in the last column, means mu of all actions, [num_actions, M + 1].
        a_tm1: action at time t-1, an integer. The loss is NaN when it is out of range.
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t, one row per target index, [K, num_actions].
        q_t_selector: Q-values that select the actions at time t, [K, num_actions]; None for the plain maximum.
        z_t: perturbation of the transition, [M]; may be None when sigma is the number 0.
        sigma: factor of the perturbation.
        second_moment: c.

    Returns:
        The loss, a scalar.
    """
    chex.assert_rank([coefficients_tm1, a_tm1, q_t], [2, 0, 2])
    chex.assert_type([coefficients_tm1, a_tm1, q_t], [float, int, float])
    # Only the action taken matters: choose its row before any index.
    mean, coefficients = coefficients_tm1[a_tm1, -1], coefficients_tm1[a_tm1, :-1]
    reward = _valid_reward(r_t, a_tm1, q_t)
    error = optimistic_td_error(mean, reward, discount_t, q_t, q_t_selector)
    if _is_zero(sigma):
        spread = -coefficients
    else:
        assert z_t is not None, "z_t is needed unless sigma is the number 0"
        chex.assert_equal_shape([z_t, coefficients])
        spread = sigma * z_t - coefficients
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
) -> types.Array:
    """Calculates the average of HyperAgent's loss over N indices (eq. 6 of https://arxiv.org/abs/2402.10228).

    For one index xi it is [r + sigma xi^T z + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2.

    Args:
        q_tm1: Q-values of the action taken at time t-1, one per index, [N].
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t: one row per target index, [K, num_actions], or target indices of
            its own for each index of the loss, [N, K, num_actions].
        q_t_selector: Q-values that select the actions at time t, like `q_t`; None for the plain maximum.
        indices: the indices xi, [N, M]; may be None when sigma is the number 0.
        z_t: perturbation of the transition, [M]; may be None when sigma is the number 0.
        sigma: factor of the perturbation.

    Returns:
        The loss, a scalar.
    """
    chex.assert_rank([q_tm1, r_t], [1, 0])
    if _is_zero(sigma):
        return jnp.mean(_td_errors(q_tm1, r_t, discount_t, q_t, q_t_selector) ** 2)
    assert indices is not None and z_t is not None, "indices and z_t are needed unless sigma is the number 0"
    chex.assert_shape(indices, (q_tm1.shape[0], *jnp.shape(z_t)))
    rewards = jax.vmap(lambda index: r_t + sigma * jnp.dot(index, z_t))(indices)
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

    It is the average over N members of mask [r + discount V(o_t) - Q(o_tm1, a_tm1)]^2, and the same with indices
    in place of members, whose masks are xi^T z.

    Args:
        q_tm1: Q-values of the action taken at time t-1, one per member, [N].
        r_t: reward at time t, a scalar.
        discount_t: discount at time t, a scalar.
        q_t: target network's Q-values at time t: each member's own, [N, 1, num_actions], or the same K rows for
            all members, of which the best counts, [K, num_actions].
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
    """TD errors [N] of q_tm1 [N]; rewards [N] or one, and targets [N, K, num_actions] or [K, num_actions]."""
    targets = 0 if jnp.ndim(q_t) == 3 else None
    rewards = 0 if jnp.ndim(r_t) == 1 else None
    axes = (0, rewards, None, targets, None if q_t_selector is None else targets)
    return jax.vmap(optimistic_td_error, axes)(q_tm1, r_t, discount_t, q_t, q_t_selector)


def _valid_reward(r_t: types.Array, a_tm1: types.Array, q_t: types.Array) -> types.Array:
    """The reward, or NaN when the action is out of range, which an array lookup does not report."""
    return jnp.where((a_tm1 >= 0) & (a_tm1 < q_t.shape[-1]), r_t, jnp.nan)


def _is_zero(value: Scalar) -> bool:
    """Whether a setting is known to be zero before anything runs."""
    return not isinstance(value, jax.Array) and value == 0


# The loss of a network.


def draw_noise(
    key: types.PRNGKey,
    batch_size: int,
    *,
    index: indices_lib.IndexDistribution,
    kind: str,
    target_index: str,
    num_indices: int,
    num_ois: int,
) -> LossNoise:
    """Draws the random numbers of one update.

    Args:
        key: random key.
        batch_size: number of transitions B.
        index: distribution of the index.
        kind: see `make_td_loss`, like all that follow.
        target_index: how target indices are drawn.
        num_indices: number of indices N of the sampled loss.
        num_ois: number of target indices.

    Returns:
        LossNoise whose arrays have a leading axis of length B.
    """
    loss_indices, target = None, None
    if kind == "sampled":
        loss_indices = index.sample(types.fold_in_tag(key, "loss"), (batch_size, num_indices))
    if target_index in ("transition", "shared"):
        drawn = batch_size if target_index == "transition" else 1
        target = index.sample(types.fold_in_tag(key, "target"), (drawn, num_ois))
        target = jnp.broadcast_to(target, (batch_size, *target.shape[1:]))
    return LossNoise(loss_indices, target)


def td_loss_with_value(
    params: types.Params,
    target_params: types.Params,
    transition: types.Transition,
    prior_tm1: types.Belief,
    prior_t: types.Belief,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    kind: str,
    sigma: Scalar,
    is_masked: bool,
    target_index: str,
    double_q: bool,
) -> tuple[types.Array, types.Array]:
    """Calculates the TD loss of one transition for a network, and the Q-value it is about.

    Args:
        params: online parameters.
        target_params: target parameters.
        transition: one Transition, without a batch axis.
        prior_tm1: the fixed prior's belief at o_tm1.
        prior_t: the fixed prior's belief at o_t.
        noise: LossNoise of the transition, without a batch axis.
        network: the network.
        kind: see `make_td_loss`, like all that follow.
        sigma: factor of xi^T z.
        is_masked: whether xi^T z weighs the loss.
        target_index: which indices the target uses.
        double_q: whether the online network selects the target's action.

    Returns:
        The loss and the Q-value of the action taken, averaged over the indices of the loss; two scalars.
    """
    t, support = transition, cast(types.Array, network.index.support)  # an array wherever it is used
    target_indices = cast(types.Array, noise.target_indices)  # likewise
    shape = None if t.z_t is None else jnp.shape(t.z_t)
    if (is_masked or not _is_zero(sigma)) and shape != (network.index.dim,):
        raise ValueError(
            "the perturbation z_t of one transition must have the index's shape "
            f"({network.index.dim},), got {shape}"
        )
    online = jax.lax.stop_gradient(params)
    belief_tm1 = network.posterior(params, t.o_tm1, prior_tm1)
    target_belief_t = network.posterior(target_params, t.o_t, prior_t)
    online_belief_t = network.posterior(online, t.o_t, prior_t) if double_q else None

    def q_values_t(target_indices: types.Array) -> tuple[types.Array, types.Array | None]:
        """Target network's and selecting Q-values at o_t, [K, num_actions] each."""
        over_indices = jax.vmap(network.value, (None, None, 0))
        q_t = over_indices(target_params, target_belief_t, target_indices)
        return q_t, over_indices(online, online_belief_t, target_indices) if double_q else None

    if kind == "exact":
        second_moment = network.index.second_moment
        assert second_moment is not None  # make_td_loss has refused such an index
        targets = q_values_t(target_indices)
        loss = exact_td_loss(belief_tm1, t.a_tm1, t.r_t, t.discount_t, *targets, t.z_t, sigma, second_moment)
        return loss, belief_tm1[t.a_tm1, -1]

    loss_indices = cast(types.Array, noise.indices) if kind == "sampled" else support
    if network.is_linear:  # only the action taken matters: choose its row before any index
        mean, coefficients = belief_tm1[t.a_tm1, -1], belief_tm1[t.a_tm1, :-1]
        q_tm1 = jax.vmap(lambda index: mean + jnp.dot(coefficients, index))(loss_indices)
    else:
        q_tm1 = jax.vmap(lambda index: network.value(params, belief_tm1, index)[t.a_tm1])(loss_indices)
    if target_index == "dependent":
        q_t, q_t_selector = jax.vmap(lambda index: q_values_t(index[None]))(loss_indices)
    else:
        q_t, q_t_selector = q_values_t(support if target_index == "all" else target_indices)
    reward = _valid_reward(t.r_t, t.a_tm1, q_t)
    if is_masked:
        masks = jax.vmap(jnp.dot, (0, None))(loss_indices, t.z_t)
        loss = masked_td_loss(q_tm1, reward, t.discount_t, q_t, q_t_selector, masks)
    else:
        loss = sampled_td_loss(q_tm1, reward, t.discount_t, q_t, q_t_selector, loss_indices, t.z_t, sigma)
    return loss, jnp.mean(q_tm1)


def td_loss(
    params: types.Params,
    target_params: types.Params,
    transition: types.Transition,
    prior_tm1: types.Belief,
    prior_t: types.Belief,
    noise: LossNoise,
    **settings: Any,
) -> types.Array:
    """Calculates the TD loss of one transition for a network.

    Args:
        params: online parameters.
        target_params: target parameters.
        transition: one Transition, without a batch axis.
        prior_tm1: the fixed prior's belief at o_tm1.
        prior_t: the fixed prior's belief at o_t.
        noise: LossNoise of the transition, without a batch axis.
        **settings: see `td_loss_with_value`.

    Returns:
        The loss, a scalar.
    """
    return td_loss_with_value(params, target_params, transition, prior_tm1, prior_t, noise, **settings)[0]


def make_td_loss(
    network: epistemic.EpistemicNetwork,
    *,
    kind: str = "exact",
    sigma: Scalar = 0.0,
    perturbation: indices_lib.IndexDistribution | None = None,
    is_masked: bool = False,
    num_indices: int = 20,
    target_index: str = "transition",
    num_ois: int = 1,
    double_q: bool = True,
) -> Loss:
    """Makes the TD loss of all systems with an index (eq. 4, 8 and "Algorithmic difference" of
    https://arxiv.org/abs/2402.10228).

    For one index it is [r + sigma' xi^T z + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2, HyperAgent's, or
    (xi^T z) [r + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2, that of bootstrapped ensembles.

    Args:
        network: the network.
        kind: "sampled" averages over `num_indices` indices (`sampled_td_loss`), "exact" is its expectation
            (`exact_td_loss`), "enumerated" averages over all values of the index: the members of an ensemble.
        sigma: standard deviation of the noise sigma' xi^T z on the reward, whatever the two distributions:
            sigma' = sigma / sqrt(M c_xi c_z), c being their `second_moment`. May be traced.
        perturbation: distribution of z; default `scaled_sphere(M)`, or `bernoulli_mask(M)` when masked.
        is_masked: whether xi^T z weighs the loss instead of being added to the reward.
        num_indices: number of indices of the sampled loss.
        target_index: "transition" draws xi^- for every transition of the batch (state-dependent), "shared" once
            per update (state-independent), "dependent" uses xi itself, "all" maximises over all its values.
        num_ois: number of target indices over which the target is maximised.
        double_q: whether the online network selects the target's action.

    Returns:
        The Loss; draw the z_t of transitions from its `perturbation`.
    """
    index = network.index
    checks.one_of("loss", kind, LOSSES)
    checks.one_of("target_index", target_index, TARGET_INDICES)
    checks.flag("is_masked", is_masked)
    checks.flag("double_q", double_q)
    checks.real_number("sigma", sigma, 0)
    checks.whole_number("num_indices", num_indices, 1)
    checks.whole_number("num_ois", num_ois, 1)
    if perturbation is None:
        perturbation = _default_perturbation(index.dim, is_masked)
    has_noise = not _is_zero(sigma)
    for is_wrong, message in (
        (
            index.support is None and (kind == "enumerated" or target_index == "all"),
            f"the index distribution {index.name!r} has no finite support to enumerate: "
            "use the sampled loss and target_index=transition",
        ),
        (kind == "exact" and is_masked, "the exact loss has no masks: use the sampled or the enumerated loss"),
        (
            kind == "exact" and target_index == "dependent",
            "the exact loss needs a target index that is independent of the loss index: "
            "use the sampled loss with target_index=dependent",
        ),
        (
            kind == "exact" and not network.is_linear,
            "the exact loss needs a network that is linear in its index: use the sampled loss",
        ),
        (
            kind == "exact" and not index.is_isotropic,
            "the exact loss needs an index with zero mean and isotropic second moment, not "
            f"{index.name!r}: use the sampled loss",
        ),
        (
            is_masked and (index.support is None or np.min(index.support) < 0),
            f"masks must not be negative, as xi^T z can be for the index {index.name!r}: "
            "use is_masked=False, or an index on coordinates",
        ),
        (
            is_masked and perturbation.mean <= 0,
            f"masks must not be negative, as those of {perturbation.name!r} can be: use bernoulli_mask",
        ),
        (is_masked and has_noise, "a masked loss adds no noise to the reward: use sigma=0"),
        (
            target_index in ("dependent", "all") and num_ois > 1,
            f"target_index={target_index} leaves no choice of target indices: use num_ois=1",
        ),
        (
            perturbation.dim != index.dim,
            f"the perturbation must have the dimension {index.dim} of the index, got {perturbation.dim}",
        ),
        (has_noise and index.dim == 0, "sigma is for networks with an index: use sigma=0"),
        (
            has_noise and (index.second_moment is None or perturbation.second_moment is None),
            "sigma needs an index and a perturbation with isotropic second moments, "
            f"got {index.name!r} and {perturbation.name!r}",
        ),
    ):
        if is_wrong:
            raise ValueError(message)
    if has_noise:
        # E[(xi^T z)^2] = M c_xi c_z; 1 for the unit-sphere index with z on the sphere of radius sqrt(M).
        assert index.second_moment is not None and perturbation.second_moment is not None
        sigma = sigma / math.sqrt(index.dim * index.second_moment * perturbation.second_moment)
    settings = dict(
        network=network, kind=kind, sigma=sigma, is_masked=is_masked, target_index=target_index, double_q=double_q
    )
    return Loss(
        binding.bind(
            draw_noise,
            index=index,
            kind=kind,
            target_index=target_index,
            num_indices=num_indices,
            num_ois=num_ois,
        ),
        binding.bind(td_loss, **settings),
        apply_with_value=binding.bind(td_loss_with_value, **settings),
        is_semi_gradient=True,
        perturbation=perturbation,
    )


def _default_perturbation(dim: int, is_masked: bool) -> indices_lib.IndexDistribution:
    if dim == 0:
        return indices_lib.no_index()
    return indices_lib.bernoulli_mask(dim) if is_masked else indices_lib.scaled_sphere(dim)


# What is added to a loss.


def _with_regularizer(loss: Loss, term: Callable[[types.Params], types.Array], beta: float) -> Loss:
    """Adds beta / |D| times a term of the parameters to the loss's regulariser."""
    if not beta:
        return loss
    others = loss.regularizer

    def regularizer(params: types.Params, replay_size: types.Array | None) -> types.Array:
        if replay_size is None:
            raise ValueError("a regulariser needs the batch's replay_size: how many transitions the replay holds")
        value = beta * term(params) / jnp.maximum(replay_size, 1)
        return value if others is None else value + others(params, replay_size)

    return loss._replace(regularizer=regularizer)


def with_prior_regularization(loss: Loss, beta: float) -> Loss:
    """Adds beta / |D| |theta|^2 (eq. 5)."""

    def squared_norm(params: types.Params) -> types.Array:
        return sum((jnp.sum(x**2) for x in jax.tree.leaves(params)), start=0)  # type: ignore[return-value]

    return _with_regularizer(loss, squared_norm, beta)


def with_head_regularization(loss: Loss, network: epistemic.EpistemicNetwork, beta: float) -> Loss:
    """Adds beta / |D| times the mean square of the generated last-layer weights A xi + b, as the released code.

    It samples xi; this is the expectation, c |A_i|^2 + b_i^2 in the mean over weights i, where E[xi xi^T] = c I.
    """
    if not beta:
        return loss
    second_moment = network.index.second_moment
    if not network.is_linear or not network.index.is_isotropic or second_moment is None:
        raise ValueError("head_regularization needs a generated last layer: use prior_regularization")

    def mean_square(params: types.Params) -> types.Array:
        kernel = params["head"]["kernel"]  # A and, last, b: [features, num_actions, M + 1]
        variances = second_moment * jnp.sum(kernel[..., :-1] ** 2, axis=-1)
        return jnp.mean(variances + kernel[..., -1] ** 2)

    return _with_regularizer(loss, mean_square, beta)


def with_gradient_penalty(loss: Loss, factor: float) -> Loss:
    """Adds factor times the squared norm of the gradient of the batch's mean Q-value (released code, Atari)."""
    if factor and loss.apply_with_value is None:
        raise ValueError("a gradient penalty needs a loss with apply_with_value")
    return loss._replace(gradient_penalty=factor)


# The loss of a batch.


def check_batch(batch: types.Batch) -> int:
    """Raises ValueError unless a batch has the shapes and types that a loss needs; returns its size B.

    It reads shapes and types only, so it costs nothing in a compiled program.
    """
    if not hasattr(batch, "transitions"):
        raise ValueError(f"a learner takes a Batch, got a {type(batch).__name__}: use Batch(transitions)")
    t = batch.transitions
    for name in ("a_tm1", "r_t", "discount_t"):
        if not hasattr(getattr(t, name), "dtype"):
            raise ValueError(f"{name} must be an array [B], got {getattr(t, name)!r}")
    if t.a_tm1.ndim != 1:
        raise ValueError(
            f"a_tm1 must have the shape [B], got {t.a_tm1.shape}: every field of a batch has a leading batch axis"
        )
    size = t.a_tm1.shape[0]
    if not size:
        raise ValueError("the batch is empty")
    if not jnp.issubdtype(t.a_tm1.dtype, jnp.integer):
        raise ValueError(f"a_tm1 must have an integer type, got {t.a_tm1.dtype}")
    for name, value in (("r_t", t.r_t), ("discount_t", t.discount_t), ("weights", batch.weights)):
        if value is None:  # only weights may be, the others are arrays
            continue
        if value.shape != (size,):
            raise ValueError(f"{name} must have the shape [B] = ({size},), got {value.shape}")
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{name} must have a floating-point type, got {value.dtype}: cast it to float32")
    for name, tree in (
        ("o_tm1", t.o_tm1),
        ("o_t", t.o_t),
        ("z_t", t.z_t),
        ("prior_tm1", batch.prior_tm1),
        ("prior_t", batch.prior_t),
    ):
        for leaf in jax.tree.leaves(tree):
            if jnp.shape(leaf)[:1] != (size,):
                raise ValueError(
                    f"{name} must have the leading batch axis B = {size}, got shape {jnp.shape(leaf)}"
                )
    return size


def with_prior_beliefs(
    batch: types.Batch, prior: types.Params, network: epistemic.EpistemicNetwork
) -> types.Batch:
    """Returns the batch with the fixed prior's beliefs, computed where they were not stored."""
    over_batch = jax.vmap(network.prior, (None, 0))
    if batch.prior_tm1 is None:
        batch = batch._replace(prior_tm1=over_batch(prior, batch.transitions.o_tm1))
    if batch.prior_t is None:
        batch = batch._replace(prior_t=over_batch(prior, batch.transitions.o_t))
    return batch


def _over_transitions(
    apply: Callable[..., Any],
    params: types.Params,
    target_params: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    axes: Any,
) -> Any:
    per_transition = jax.vmap(apply, (axes, axes, 0, 0, 0, 0))
    return per_transition(params, target_params, batch.transitions, batch.prior_tm1, batch.prior_t, noise)


def _total(each: types.Array, params: types.Params, batch: types.Batch, loss: Loss) -> types.Array:
    """The weighted mean of losses [B] plus the regulariser."""
    value = jnp.mean(each if batch.weights is None else batch.weights * each)
    if loss.regularizer is not None:
        value += loss.regularizer(params, batch.replay_size)
    return value


def batch_loss(
    params: types.Params,
    target_params: types.Params,
    prior: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    loss: Loss,
    axes: Any = None,
) -> tuple[types.Array, types.Array]:
    """Calculates the loss of a batch, without the gradient penalty.

    Args:
        params: online parameters.
        target_params: target parameters.
        prior: the fixed prior.
        batch: a Batch of B transitions.
        noise: LossNoise of the batch.
        network: the network.
        loss: the loss of one transition.
        axes: vmap axes of both parameters; leaves that differ from one transition to the next have axis 0.

    Returns:
        The weighted mean of the losses plus the regulariser, a scalar; and the unweighted losses [B].
    """
    check_batch(batch)
    batch = with_prior_beliefs(batch, prior, network)
    each = _over_transitions(loss.apply, params, target_params, batch, noise, axes)
    return _total(each, params, batch, loss), each


def value_and_grad(
    params: types.Params,
    target_params: types.Params,
    prior: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    loss: Loss,
    axes: Any = None,
) -> tuple[tuple[types.Array, types.Array], types.Params]:
    """Calculates the loss of a batch and its gradient, with regulariser and gradient penalty.

    Args:
        params: online parameters.
        target_params: target parameters.
        prior: the fixed prior.
        batch: a Batch of B transitions.
        noise: LossNoise of the batch.
        network: the network.
        loss: the loss of one transition.
        axes: vmap axes of both parameters; leaves that differ from one transition to the next have axis 0.

    Returns:
        ((value, losses), gradient): the value is a scalar, the losses of the transitions [B] are unweighted, and
        the gradient is like `params`. If the value is
        NaN the gradient may be zero where it should be NaN; see `propagate_nan`.
    """
    check_batch(batch)
    batch = with_prior_beliefs(batch, prior, network)
    if loss.gradient_penalty:
        return _penalized_value_and_grad(params, target_params, batch, noise, loss, axes)

    def of_params(params: types.Params) -> tuple[types.Array, types.Array]:
        each = _over_transitions(loss.apply, params, target_params, batch, noise, axes)
        return _total(each, params, batch, loss), each

    return jax.value_and_grad(of_params, has_aux=True)(params)


def propagate_nan(value: types.Array, params: types.Params) -> types.Params:
    """Returns new parameters, the smallest array of which is NaN if the value of the loss they come from is.

    A compiled program may take the gradient of a maximum of NaNs for zero, and a NaN reward would go unnoticed.
    One array is enough to make all Q-values NaN; a look at all of them would cost 6% of a step of a small network.
    """
    leaves, structure = jax.tree.flatten(params)
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[smallest] = jnp.where(jnp.isnan(value), jnp.nan, leaves[smallest])
    return jax.tree.unflatten(structure, leaves)


def _penalized_value_and_grad(
    params: types.Params, target_params: types.Params, batch: types.Batch, noise: LossNoise, loss: Loss, axes: Any
) -> tuple[tuple[types.Array, types.Array], types.Params]:
    """`value_and_grad` of a loss with a gradient penalty; the batch has its prior beliefs."""
    # With g the gradient of the mean value and H its Hessian, the gradient of |g|^2 is 2 H g, and H v is
    # how g moves along v. A pass back is linear in what it starts from, so its derivative at (parameters,
    # mean value) in the direction (v, loss) is H v plus the gradient of the loss. One forward derivative
    # of one pass back thus gives everything, where two passes back take four times as long.
    apply = loss.apply_with_value
    assert apply is not None  # with_gradient_penalty has refused such a loss

    def loss_and_value(params: types.Params) -> Any:
        each, values = _over_transitions(apply, params, target_params, batch, noise, axes)
        value = _total(each, params, batch, loss)
        return (value, jnp.mean(values)), (value, each)

    def pull_back(params: types.Params, cotangents: tuple[float, float]) -> Any:
        _, transposed, aux = jax.vjp(loss_and_value, params, has_aux=True)
        return transposed(cotangents)[0], aux

    of_value, along, (value, each) = jax.linearize(pull_back, params, (0.0, 1.0), has_aux=True)
    gradient = along(optax.tree.scale(2 * loss.gradient_penalty, of_value), (1.0, 0.0))
    penalty = loss.gradient_penalty * optax.tree.norm(of_value, squared=True)
    return (value + penalty, each), gradient
