"""Calculates exact values of MDPs and policies, and anything else that is solved stage by stage."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.tabular import mdps

Backup = Callable[[Any, types.Array], types.Array]


def _greedy_values(q: types.Array, stage: Any) -> types.Array:
    del stage
    return jnp.max(q, -1)


def backward_induction(
    backup: Backup,
    stages: Any,
    num_states: int,
    values: Callable[[types.Array, Any], types.Array] = _greedy_values,
) -> types.Array:
    """Calculates Q-values [H, S, A] from the last stage to the first.

    Args:
        backup: maps (a stage, values [S] of the next one) to Q-values [S, A].
        stages: a pytree whose arrays have a leading axis H.
        num_states: S.
        values: maps (Q-values [S, A], a stage) to the values [S] of its states; by default greedy values.
    """
    horizon = jax.tree.leaves(stages)[0].shape[0]

    # Stages are indexed by number: as scanned inputs, all of them would be transposed under vmap.
    def step(next_values: types.Array, h: types.Array) -> tuple[types.Array, types.Array]:
        stage = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, h, keepdims=False), stages)
        q = backup(stage, next_values)
        return values(q, stage), q

    _, q = jax.lax.scan(step, jnp.zeros(num_states), jnp.arange(horizon), reverse=True)
    return q


def expected_backup(stage: tuple[types.Array, types.Array], next_values: types.Array) -> types.Array:
    """Calculates r + P V, the true Bellman operator (eq. bellman-true) with discount 1, for a stage (r, P)."""
    rewards, transitions = stage
    return rewards + transitions @ next_values


def optimal_q(mdp: mdps.FiniteMdp) -> types.Array:
    """Calculates Q*, [H, S, A]."""
    return backward_induction(expected_backup, (mdp.rewards, mdp.transitions), mdp.start.shape[0])


def greedy(q: types.Array) -> types.Array:
    """Returns the policy [..., A] that is greedy with respect to q [..., A], with ties shared equally."""
    best = q == jnp.max(q, -1, keepdims=True)
    return best / jnp.sum(best, -1, keepdims=True)


def policy_q(mdp: mdps.FiniteMdp, policy: types.Array) -> types.Array:
    """Calculates the Q-values [H, S, A] of a policy with action probabilities [H, S, A]."""

    return backward_induction(
        lambda stage, next_values: expected_backup(stage[:2], next_values),
        (mdp.rewards, mdp.transitions, policy),
        mdp.start.shape[0],
        lambda q, stage: jnp.sum(stage[2] * q, -1),
    )


def start_value(mdp: mdps.FiniteMdp, policy: types.Array, q: types.Array) -> types.Array:
    """Calculates the expected return of a policy [H, S, A] with Q-values [H, S, A]."""
    return mdp.start @ jnp.sum(policy[0] * q[0], -1)


def policy_return(mdp: mdps.FiniteMdp, policy: types.Array) -> types.Array:
    """Calculates the expected return of a policy [H, S, A]."""
    return start_value(mdp, policy, policy_q(mdp, policy))


def optimal_return(mdp: mdps.FiniteMdp) -> types.Array:
    """Calculates the expected return of an optimal policy."""
    q = optimal_q(mdp)
    return start_value(mdp, greedy(q), q)


def fixed_point(
    operator: Callable[[types.Array], types.Array], start: types.Array, tolerance: float = 1e-6
) -> types.Array:
    """Iterates a contraction on Q-values until no entry moves by more than `tolerance`."""

    def moves(carry: tuple[types.Array, types.Array]) -> types.Array:
        q, last = carry
        return jnp.max(jnp.abs(q - last)) > tolerance

    return jax.lax.while_loop(moves, lambda carry: (operator(carry[0]), carry[0]), (operator(start), start))[0]


def value_iteration(mdp: mdps.DiscountedMdp, tolerance: float = 1e-6) -> types.Array:
    """Calculates Q*, [S, A], of a discounted MDP."""

    def operator(q: types.Array) -> types.Array:
        return mdp.rewards + mdp.discount * mdp.transitions @ jnp.max(q, -1)

    return fixed_point(operator, jnp.zeros_like(mdp.rewards), tolerance)


def discounted_policy_q(mdp: mdps.DiscountedMdp, policy: types.Array) -> types.Array:
    """Calculates the Q-values [S, A] of a policy [S, A] in a discounted MDP, by solving linear equations."""
    step = jnp.einsum("xa,xay->xy", policy, mdp.transitions)
    rewards = jnp.sum(policy * mdp.rewards, -1)
    values = jnp.linalg.solve(jnp.eye(len(rewards)) - mdp.discount * step, rewards)
    return mdp.rewards + mdp.discount * mdp.transitions @ values
