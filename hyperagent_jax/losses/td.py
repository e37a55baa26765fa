"""The temporal-difference loss of a network with an index, for one transition."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import indices as indices_lib
from hyperagent_jax import rows
from hyperagent_jax import types
from hyperagent_jax.losses import arrays
from hyperagent_jax.losses.base import Loss
from hyperagent_jax.losses.base import LossNoise
from hyperagent_jax.networks import epistemic

LOSSES = ("exact", "sampled", "enumerated")
TARGET_INDICES = ("transition", "shared", "dependent", "all")
LOSS_INDICES = ("transition", "shared")
SELECTOR_INDICES = ("target", "own")


def draw_noise(
    key: types.PRNGKey,
    batch_size: int,
    *,
    index: indices_lib.IndexDistribution,
    kind: str,
    target_index: str,
    num_indices: int,
    num_ois: int,
    loss_index: str = "transition",
    selector_index: str = "target",
) -> LossNoise:
    """Draws the random numbers of one update.

    Args:
        key: random key.
        batch_size: number of transitions B.
        index: distribution of the index.
        kind: see `make_td_loss`, also for the following arguments.
        target_index: how target indices are drawn.
        num_indices: number of indices N of the sampled loss.
        num_ois: number of target indices.
        loss_index: how the indices of the sampled loss are drawn.
        selector_index: whether the selector has its own indices.

    Returns:
        LossNoise whose arrays have a leading axis of length B, or of length 1 if all transitions share them.
    """
    loss_indices, target, selector = None, None, None
    if kind == "sampled":
        drawn = batch_size if loss_index == "transition" else 1
        loss_indices = index.sample(types.fold_in_tag(key, "loss"), (drawn, num_indices))
    if target_index in ("transition", "shared"):
        drawn = batch_size if target_index == "transition" else 1
        target = index.sample(types.fold_in_tag(key, "target"), (drawn, num_ois))
        if selector_index == "own":
            selector = index.sample(types.fold_in_tag(key, "selector"), (drawn, num_ois))
    return LossNoise(loss_indices, target, selector)


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
    sigma: arrays.Scalar,
    residual: arrays.Scalar,
    is_masked: bool,
    target_index: str,
    double_q: bool,
) -> tuple[types.Array, types.Array]:
    """Calculates the TD loss of one transition for a network, and the Q-value that it trains.

    Args:
        params: online parameters.
        target_params: target parameters.
        transition: one Transition, without a batch axis.
        prior_tm1: the fixed prior's belief at o_tm1.
        prior_t: the fixed prior's belief at o_t.
        noise: LossNoise of the transition, without a batch axis.
        network: the network.
        kind: see `make_td_loss`, also for the following arguments.
        sigma: factor of xi^T z.
        residual: factor of the TD error times xi^T z.
        is_masked: whether xi^T z weights the loss.
        target_index: which indices the target uses.
        double_q: whether the online network selects the target's action.

    Returns:
        The loss and the Q-value of the action taken, averaged over the indices of the loss; two scalars.
    """
    t, support = transition, cast(types.Array, network.index.support)  # not None where it is used
    target_indices = cast(types.Array, noise.target_indices)  # not None where it is used
    shape = None if t.z_t is None else jnp.shape(t.z_t)
    has_noise = not (arrays.is_zero(sigma) and arrays.is_zero(residual))
    if (is_masked or has_noise) and shape != (network.index.dim,):
        raise ValueError(
            "the perturbation z_t of one transition must have the index's shape "
            f"({network.index.dim},), got {shape}"
        )
    online = jax.lax.stop_gradient(params)
    belief_tm1 = network.posterior(params, t.o_tm1, prior_tm1)
    target_belief_t = network.posterior(target_params, t.o_t, prior_t)
    online_belief_t = network.posterior(online, t.o_t, prior_t) if double_q else None

    def q_values_t(target_indices: types.Array) -> tuple[types.Array, types.Array | None]:
        """Returns the target network's and the selecting Q-values at o_t, [K, num_actions] each."""
        over_indices = jax.vmap(network.value, (None, None, 0))
        q_t = over_indices(target_params, target_belief_t, target_indices)
        selector = target_indices if noise.selector_indices is None else noise.selector_indices
        return q_t, over_indices(online, online_belief_t, selector) if double_q else None

    if kind == "exact":
        second_moment = network.index.second_moment
        assert second_moment is not None  # make_td_loss rejects such an index
        targets = q_values_t(target_indices)
        loss = arrays.exact_td_loss(
            belief_tm1, t.a_tm1, t.r_t, t.discount_t, *targets, t.z_t, sigma, second_moment, residual
        )
        return loss, rows.of_action(belief_tm1[:, -1], t.a_tm1)

    loss_indices = cast(types.Array, noise.indices) if kind == "sampled" else support
    if network.is_linear:  # only the action taken matters: select its row before applying any index
        chosen = rows.of_action(belief_tm1, t.a_tm1)
        mean, coefficients = chosen[-1], chosen[:-1]
        q_tm1 = jax.vmap(lambda index: mean + jnp.dot(coefficients, index))(loss_indices)
    else:
        q_tm1 = jax.vmap(lambda index: rows.of_action(network.value(params, belief_tm1, index), t.a_tm1))(
            loss_indices
        )
    if target_index == "dependent":
        q_t, q_t_selector = jax.vmap(lambda index: q_values_t(index[None]))(loss_indices)
    else:
        q_t, q_t_selector = q_values_t(support if target_index == "all" else target_indices)
    reward = arrays.valid_reward(t.r_t, t.a_tm1, q_t)
    if is_masked:
        masks = jax.vmap(jnp.dot, (0, None))(loss_indices, t.z_t)
        loss = arrays.masked_td_loss(q_tm1, reward, t.discount_t, q_t, q_t_selector, masks)
    else:
        loss = arrays.sampled_td_loss(
            q_tm1, reward, t.discount_t, q_t, q_t_selector, loss_indices, t.z_t, sigma, residual
        )
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
    sigma: arrays.Scalar = 0.0,
    residual: arrays.Scalar = 0.0,
    perturbation: indices_lib.IndexDistribution | None = None,
    is_masked: bool = False,
    num_indices: int = 20,
    target_index: str = "transition",
    num_ois: int = 1,
    double_q: bool = True,
    loss_index: str = "transition",
    selector_index: str = "target",
) -> Loss:
    """Makes the TD loss of all systems with an index (eq. 4, 8 and "Algorithmic difference" of
    https://arxiv.org/abs/2402.10228).

    For one index it is [r + sigma' xi^T z + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2 as in HyperAgent, or
    (xi^T z) [r + discount V(o_t) - Q(o_tm1, a_tm1, xi)]^2 as in bootstrapped ensembles.

    Args:
        network: the network.
        kind: "sampled" averages over `num_indices` indices (`sampled_td_loss`), "exact" is its expectation
            (`exact_td_loss`), "enumerated" averages over all values of the index: the members of an ensemble.
        sigma: standard deviation of the noise sigma' xi^T z on the reward, for any choice of the two
            distributions: sigma' = sigma / sqrt(M c_xi c_z), where c is the `second_moment` of each. May be
            traced.
        residual: factor of additional noise proportional to the transition's own TD error, scaled like sigma: a
            multiplier bootstrap, whose spread remains where targets are noisy and vanishes where they are not. May
            be traced.
        perturbation: distribution of z; default `scaled_sphere(M)`, or `bernoulli_mask(M)` if masked.
        is_masked: whether xi^T z weights the loss instead of being added to the reward.
        num_indices: number of indices of the sampled loss.
        target_index: "transition" draws xi^- for every transition of the batch (state-dependent), "shared" once
            per update (state-independent), "dependent" uses xi itself, "all" maximises over all its values.
        num_ois: number of target indices over which the target is maximised.
        double_q: whether the online network selects the target's action.
        loss_index: whether the sampled loss draws its indices for every "transition", or once per update
            ("shared"), as Noisy-Net does.
        selector_index: whether the selecting online network uses the indices of the "target" or its "own".

    Returns:
        The Loss; sample the z_t of transitions from its `perturbation`.
    """
    index = network.index
    checks.one_of("loss", kind, LOSSES)
    checks.one_of("target_index", target_index, TARGET_INDICES)
    checks.one_of("loss_index", loss_index, LOSS_INDICES)
    checks.one_of("selector_index", selector_index, SELECTOR_INDICES)
    checks.flag("is_masked", is_masked)
    checks.flag("double_q", double_q)
    checks.real_number("sigma", sigma, 0)
    checks.real_number("residual", residual, 0)
    checks.whole_number("num_indices", num_indices, 1)
    checks.whole_number("num_ois", num_ois, 1)
    if perturbation is None:
        perturbation = _default_perturbation(index.dim, is_masked)
    has_noise = not (arrays.is_zero(sigma) and arrays.is_zero(residual))
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
            f"masks must not be negative, but xi^T z can be for the index {index.name!r}: "
            "use is_masked=False, or an index of coordinates",
        ),
        (
            is_masked and perturbation.mean <= 0,
            f"masks must not be negative, but those of {perturbation.name!r} can be: use bernoulli_mask",
        ),
        (is_masked and has_noise, "a masked loss adds no noise to the reward: use sigma=0 and residual=0"),
        (
            target_index in ("dependent", "all") and num_ois > 1,
            f"target_index={target_index} leaves no choice of target indices: use num_ois=1",
        ),
        (
            loss_index == "shared" and kind != "sampled",
            f"the {kind} loss draws no indices to share: use the sampled loss with loss_index=shared",
        ),
        (
            selector_index == "own" and (target_index in ("dependent", "all") or not double_q),
            "selector_index=own needs a selector and indices to draw: use double_q and target_index=transition",
        ),
        (
            # A loss that does not use z may leave it out: an index may be as large as a layer.
            perturbation.dim != index.dim and (perturbation.dim > 0 or is_masked or has_noise),
            f"the perturbation must have the same dimension as the index, {index.dim}, got {perturbation.dim}",
        ),
        (has_noise and index.dim == 0, "sigma is for networks with an index: use sigma=0 and residual=0"),
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
        size = math.sqrt(index.dim * index.second_moment * perturbation.second_moment)
        sigma, residual = sigma / size, residual / size
    settings = dict(
        network=network,
        kind=kind,
        sigma=sigma,
        residual=residual,
        is_masked=is_masked,
        target_index=target_index,
        double_q=double_q,
    )
    return Loss(
        binding.bind(
            draw_noise,
            index=index,
            kind=kind,
            target_index=target_index,
            num_indices=num_indices,
            num_ois=num_ois,
            loss_index=loss_index,
            selector_index=selector_index,
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
