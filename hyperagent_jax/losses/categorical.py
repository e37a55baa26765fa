"""The loss of networks with return distributions over atoms (C51, https://arxiv.org/abs/1707.06887)."""

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
from hyperagent_jax.losses import td
from hyperagent_jax.losses.base import Loss
from hyperagent_jax.losses.base import LossNoise
from hyperagent_jax.networks import epistemic


def _rlax() -> Any:
    """Imports rlax on first use: with what it imports, it would be a third of the time that this package takes."""
    with jax.ensure_compile_time_eval():  # what modules compute when they are imported is not part of a trace
        import rlax
    return rlax


def categorical_loss(
    params: types.Params,
    target_params: types.Params,
    transition: types.Transition,
    prior_tm1: types.Belief,
    prior_t: types.Belief,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    double_q: bool,
) -> types.Array:
    """Calculates the cross-entropy between the projected target distribution and the online one.

    The target is the distribution of r + discount z, with each atom's mass split linearly between its two
    neighbours.

    Args:
        params: online parameters.
        target_params: target parameters.
        transition: one Transition, without a batch axis.
        prior_tm1: the fixed prior's belief at o_tm1.
        prior_t: the fixed prior's belief at o_t.
        noise: LossNoise of the transition, with one index each.
        network: a network with a `distribution`.
        double_q: whether the online network selects the target's action.

    Returns:
        The loss, a scalar.
    """
    t, logits_of, atoms = transition, network.distribution, jnp.asarray(network.atoms)
    assert logits_of is not None  # make_categorical_loss rejects other networks
    index = cast(types.Array, noise.indices)[0]
    target_index = cast(types.Array, noise.target_indices)[0]
    logits_tm1 = logits_of(params, network.posterior(params, t.o_tm1, prior_tm1), index)
    logits_t = logits_of(target_params, network.posterior(target_params, t.o_t, prior_t), target_index)
    reward = arrays.valid_reward(t.r_t, t.a_tm1, logits_t[:, 0])
    # rlax only gets the row of the action taken to choose from: see rows.py.
    chosen, first = rows.of_action(logits_tm1, t.a_tm1)[None], np.zeros((), np.int32)
    if not double_q:
        return _rlax().categorical_q_learning(atoms, chosen, first, reward, t.discount_t, atoms, logits_t)
    online = jax.lax.stop_gradient(params)
    selector = target_index if noise.selector_indices is None else noise.selector_indices[0]
    q_t = network.value(online, network.posterior(online, t.o_t, prior_t), selector)
    return _rlax().categorical_double_q_learning(atoms, chosen, first, reward, t.discount_t, atoms, logits_t, q_t)


def make_categorical_loss(
    network: epistemic.EpistemicNetwork,
    *,
    double_q: bool = True,
    loss_index: str = "transition",
    target_index: str = "transition",
    selector_index: str = "target",
) -> Loss:
    """Makes the loss of a network with return distributions.

    Args:
        network: the network; must have a `distribution`.
        double_q: whether the online network selects the target's action.
        loss_index: whether the index of the loss is drawn for every "transition", or once per update ("shared").
        target_index: the same for the index of the target.
        selector_index: whether the selecting online network uses the index of the "target" or its "own".

    Returns:
        The Loss, which has no perturbation.
    """
    if network.distribution is None or network.atoms is None:
        raise ValueError("a categorical loss needs a network with a distribution: use make_td_loss")
    checks.flag("double_q", double_q)
    checks.one_of("loss_index", loss_index, td.LOSS_INDICES)
    checks.one_of("target_index", target_index, td.LOSS_INDICES)
    checks.one_of("selector_index", selector_index, td.SELECTOR_INDICES)
    return Loss(
        binding.bind(
            td.draw_noise,
            index=network.index,
            kind="sampled",
            target_index=target_index,
            num_indices=1,
            num_ois=1,
            loss_index=loss_index,
            selector_index=selector_index,
        ),
        binding.bind(categorical_loss, network=network, double_q=double_q),
        is_semi_gradient=True,
        perturbation=indices_lib.no_index(),
    )
