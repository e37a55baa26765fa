"""Temporal-difference losses, written for one transition; the learner lifts them over the batch."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from hyperagent_jax import types
from hyperagent_jax.networks import epistemic

LOSSES = ("exact", "sampled", "enumerated")
TARGET_INDICES = ("transition", "shared", "dependent", "all")
PERTURBATIONS = ("noise", "mask")


class LossNoise(NamedTuple):
    """The random numbers of one update.

    Attributes:
        indices: indices xi of the sampled loss, [B, N, M]; None for the others.
        target_indices: indices xi^- of the bootstrap target, [B, num_ois, M]; None when the
            target uses the loss's own indices or all there are.
    """

    indices: types.Array | None
    target_indices: types.Array | None


class Loss(NamedTuple):
    """A loss of one transition.

    Attributes:
        draw: maps (key, batch_size) to the LossNoise of a batch; every array has a leading batch axis.
        apply: maps (params, target_params, transition, prior_tm1, prior_t, noise) of one transition to
            its scalar loss.
        regularizer: maps (params, replay_size) to a scalar, added once per batch; or None.
        apply_with_value: like `apply`, but to (loss, Q-value of the action taken, its mean over the indices of the
            loss); what a gradient penalty needs.
        gradient_penalty: factor of the squared norm of the gradient of the batch's mean of those values.
        is_semi_gradient: whether the online network has a gradient at o_tm1 only, the target being held fixed.
    """

    draw: Callable[[types.PRNGKey, int], LossNoise]
    apply: Callable[..., types.Array]
    regularizer: Callable[[types.Params, types.Array], types.Array] | None = None
    apply_with_value: Callable[..., tuple[types.Array, types.Array]] | None = None
    gradient_penalty: float = 0.0
    is_semi_gradient: bool = False

    @property
    def has_local_gradient(self) -> bool:
        """Whether a parameter that is used at no o_tm1 of a batch gets no gradient, nor adds to any."""
        return self.is_semi_gradient and self.regularizer is None and not self.gradient_penalty


def td_error(
    q_tm1: types.Array,
    r_t: types.Array,
    discount_t: types.Array,
    q_t: types.Array,
    q_t_selector: types.Array | None = None,
) -> types.Array:
    """TD error of one transition, optimistic over the indices of the target (eq. OIS).

    Args:
        q_tm1: Q-value of the action taken, a scalar.
        r_t: reward.
        discount_t: discount.
        q_t: target network's Q-values at o_t, one row per target index, [num_ois, num_actions].
        q_t_selector: online network's Q-values at o_t, which select the action (double Q), or None
            for the plain maximum of the paper's formula.
    """
    q_tm1, a_tm1 = q_tm1[None], jnp.zeros((), jnp.int32)
    if q_t_selector is None:
        errors = jax.vmap(rlax.q_learning, (None,) * 4 + (0,))(q_tm1, a_tm1, r_t, discount_t, q_t)
    else:
        errors = jax.vmap(rlax.double_q_learning, (None,) * 4 + (0, 0))(
            q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector
        )
    return jnp.max(errors)


def make_td_loss(
    network: epistemic.EpistemicNetwork,
    *,
    kind: str = "exact",
    sigma: float = 0.0,
    num_indices: int = 20,
    target_index: str = "transition",
    num_ois: int = 1,
    double_q: bool = True,
    perturbation: str = "noise",
) -> Loss:
    """The TD loss of all systems with an index (eq. 4, 8; "Algorithmic difference").

    For one index it is [r + sigma xi^T z + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2, HyperAgent's, or
    (xi^T z) [r + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2, that of bootstrapped ensembles.

    Args:
        network: the network.
        kind: "sampled" averages over `num_indices` indices (eq. 6). "exact" is its expectation. The
            target's index is independent of xi, so with mu and m the mean and coefficients of
            Q(o_tm1, a_tm1, .) and E[xi xi^T] = c I, it is (y - mu)^2 + c |sigma z - m|^2. "enumerated" is
            the average over all values the index can take: the members of an ensemble.
        sigma: factor of the perturbation xi^T z. It is its standard deviation where E[(xi^T z)^2] = M c_xi c_z is
            1, c being the two distributions' `second_moment`: z of `scaled_sphere` or `cube` for xi of `sphere`.
        num_indices: number of indices of the sampled loss.
        target_index: "transition" draws xi^- anew for every transition of the batch (state-dependent),
            "shared" once per update (state-independent), "dependent" uses xi itself, "all" maximises over
            all values the index can take.
        num_ois: number of target indices over which the target is maximised.
        double_q: whether the online network selects the target's action.
        perturbation: "noise" adds sigma xi^T z to the reward, "mask" weighs the loss by xi^T z.

    Returns:
        The Loss.
    """
    if kind not in LOSSES:
        raise ValueError(f"unknown loss {kind!r}; choose one of {', '.join(LOSSES)}")
    if target_index not in TARGET_INDICES:
        raise ValueError(f"unknown target_index {target_index!r}; choose one of {', '.join(TARGET_INDICES)}")
    if perturbation not in PERTURBATIONS:
        raise ValueError(f"unknown perturbation {perturbation!r}; choose one of {', '.join(PERTURBATIONS)}")
    dependent, masked = target_index == "dependent", perturbation == "mask"
    support = network.index.support
    if support is None and (kind == "enumerated" or target_index == "all"):
        raise ValueError(
            f"the index {network.index.name!r} cannot take all its values at once: "
            "use loss=sampled and target_index=transition"
        )
    if kind == "exact" and masked:
        raise ValueError("the exact loss has no masks: use loss=sampled or loss=enumerated")
    if kind == "exact" and dependent:
        raise ValueError(
            "the exact loss needs a target index that is independent of the loss index: "
            "use loss=sampled with target_index=dependent"
        )
    if kind == "exact" and not network.is_linear:
        raise ValueError("the exact loss needs a network that is linear in its index: use loss=sampled")
    if kind == "exact" and not network.index.is_isotropic:
        raise ValueError(
            "the exact loss needs an index with zero mean and isotropic second moment, not "
            f"{network.index.name!r}: use loss=sampled"
        )
    if masked and (support is None or np.min(support) < 0):
        raise ValueError(
            f"masks must not be negative, as those of the index {network.index.name!r} can be: use "
            "perturbation=noise, or an index on coordinates"
        )
    if min(num_indices, num_ois) < 1:
        raise ValueError(f"num_indices and num_ois must be at least 1, got {num_indices} and {num_ois}")
    if target_index in ("dependent", "all") and num_ois > 1:
        raise ValueError(f"target_index={target_index} leaves no choice of target indices: use num_ois=1")

    def draw(key, batch_size):
        index, target = None, None
        if kind == "sampled":
            index = network.index.sample(types.fold_in_tag(key, "loss"), (batch_size, num_indices))
        if target_index in ("transition", "shared"):
            drawn = batch_size if target_index == "transition" else 1
            target = network.index.sample(types.fold_in_tag(key, "target"), (drawn, num_ois))
            target = jnp.broadcast_to(target, (batch_size, *target.shape[1:]))
        return LossNoise(index, target)

    def apply_with_value(params, target_params, transition, prior_tm1, prior_t, noise):
        t = transition
        shape = None if t.z_t is None else jnp.shape(t.z_t)
        if (sigma or masked) and shape != (network.index.dim,):
            raise ValueError(
                "the perturbation z_t of one transition must have the index's shape "
                f"({network.index.dim},), got {shape}"
            )
        online = jax.lax.stop_gradient(params)
        belief_tm1 = network.posterior(params, t.o_tm1, prior_tm1)
        target_belief_t = network.posterior(target_params, t.o_t, prior_t)
        online_belief_t = network.posterior(online, t.o_t, prior_t) if double_q else None

        def error(q_tm1, r_t, target_indices):
            over_indices = jax.vmap(network.value, (None, None, 0))
            q_t = over_indices(target_params, target_belief_t, target_indices)
            selector = over_indices(online, online_belief_t, target_indices) if double_q else None
            return td_error(q_tm1, r_t, t.discount_t, q_t, selector)

        if network.is_linear:  # only the action taken matters: choose its row before any index
            mean, coefficients = belief_tm1[t.a_tm1, -1], belief_tm1[t.a_tm1, :-1]

        if kind == "exact":
            mean_error = error(mean, t.r_t, noise.target_indices)
            spread = (sigma * t.z_t if sigma else 0.0) - coefficients
            return mean_error**2 + network.index.second_moment * jnp.sum(spread**2), mean

        def loss_at(index):
            if network.is_linear:
                q_tm1 = mean + jnp.dot(coefficients, index)
            else:
                q_tm1 = network.value(params, belief_tm1, index)[t.a_tm1]
            targets = {"dependent": index[None], "all": support}.get(target_index, noise.target_indices)
            if masked:
                return jnp.dot(index, t.z_t) * error(q_tm1, t.r_t, targets) ** 2, q_tm1
            noise_t = sigma * jnp.dot(index, t.z_t) if sigma else 0.0
            return error(q_tm1, t.r_t + noise_t, targets) ** 2, q_tm1

        each, values = jax.vmap(loss_at)(noise.indices if kind == "sampled" else support)
        return jnp.mean(each), jnp.mean(values)

    def apply(*arguments):
        return apply_with_value(*arguments)[0]

    return Loss(draw, apply, apply_with_value=apply_with_value, is_semi_gradient=True)


def _with_regularizer(loss: Loss, term: Callable[[types.Params], types.Array], beta: float) -> Loss:
    """Adds beta / |D| times a term of the parameters to what regularises the loss already."""
    if not beta:
        return loss
    others = loss.regularizer

    def regularizer(params, replay_size):
        if replay_size is None:
            raise ValueError("a regulariser needs the batch's replay_size: how many transitions the replay holds")
        value = beta * term(params) / jnp.maximum(replay_size, 1)
        return value if others is None else value + others(params, replay_size)

    return loss._replace(regularizer=regularizer)


def with_prior_regularization(loss: Loss, beta: float) -> Loss:
    """Adds beta / |D| |theta|^2 (eq. 5)."""
    return _with_regularizer(loss, lambda params: sum(jnp.sum(x**2) for x in jax.tree.leaves(params)), beta)


def with_head_regularization(loss: Loss, network: epistemic.EpistemicNetwork, beta: float) -> Loss:
    """Adds beta / |D| times the mean square of the generated last-layer weights A xi + b, as the released code.

    It samples xi; this is the expectation, c |A_i|^2 + b_i^2 in the mean over weights i, where E[xi xi^T] = c I.
    """
    if beta and not (network.is_linear and network.index.is_isotropic):
        raise ValueError("head_regularization needs a generated last layer: use prior_regularization")

    def mean_square(params):
        kernel = params["head"]["kernel"]  # A and, last, b: [features, num_actions, M + 1]
        variances = network.index.second_moment * jnp.sum(kernel[..., :-1] ** 2, axis=-1)
        return jnp.mean(variances + kernel[..., -1] ** 2)

    return _with_regularizer(loss, mean_square, beta)


def with_gradient_penalty(loss: Loss, factor: float) -> Loss:
    """Adds factor times the squared norm of the gradient of the batch's mean Q-value (released code, Atari)."""
    if factor and loss.apply_with_value is None:
        raise ValueError("a gradient penalty needs a loss with apply_with_value")
    return loss._replace(gradient_penalty=factor)
