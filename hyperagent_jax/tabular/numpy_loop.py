"""Tabular HyperAgent as a plain numpy loop, one seed at a time: the baseline for the speed of the compiled one."""

import numpy as np

from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps


def run(
    config: hyperagent.Config, mdp: mdps.FiniteMdp, seed: int, num_episodes: int, *, is_tuned: bool = True
) -> np.ndarray:
    """Returns returns [num_episodes] of `hyperagent.make_agent`'s agent with `num_ois` 1 and `index_map` "state".

    Args:
        config: the agent's settings.
        mdp: the environment.
        seed: the seed.
        num_episodes: K.
        is_tuned: whether states are drawn by bisection in precomputed cumulative probabilities instead of with the
            generator's `choice`, the straightforward way.
    """
    transitions, rewards, start = (np.asarray(x, np.float64) for x in mdp)
    transitions, start = (x / x.sum(-1, keepdims=True) for x in (transitions, start))  # `choice` is strict
    horizon, num_states, _ = rewards.shape
    rng = np.random.default_rng(seed)
    cumulative, cumulative_start = np.cumsum(transitions, -1), np.cumsum(start)
    visits, moves = np.zeros(rewards.shape), np.zeros(transitions.shape)

    def draw(probabilities: np.ndarray, cumulative: np.ndarray) -> int:
        if is_tuned:
            return min(np.searchsorted(cumulative, rng.random(), side="right"), num_states - 1)
        return rng.choice(num_states, p=probabilities)

    def on_sphere(*shape: int) -> np.ndarray:
        z = rng.standard_normal((*shape, config.index_dim))
        return z / np.linalg.norm(z, axis=-1, keepdims=True)

    m = config.sigma / np.sqrt(config.beta) * on_sphere(*rewards.shape)
    returns = np.zeros(num_episodes)
    for k in range(num_episodes):
        xi = rng.standard_normal((horizon, num_states, config.index_dim))
        noise = np.einsum("hxam,hxm->hxa", m, xi)
        actions, values = np.zeros((horizon, num_states), int), np.zeros(num_states)
        for h in reversed(range(horizon)):
            total = config.beta * config.prior_mean + visits[h] * rewards[h] + moves[h] @ values
            q = total / (visits[h] + config.beta) + noise[h]
            actions[h], values = q.argmax(-1), q.max(-1)
        x = draw(start, cumulative_start)
        for h in range(horizon):
            a = actions[h, x]
            y = draw(transitions[h, x, a], cumulative[h, x, a])
            weight = visits[h, x, a] + config.beta
            m[h, x, a] = (weight * m[h, x, a] + config.sigma * on_sphere()) / (weight + 1.0)
            visits[h, x, a] += 1.0
            moves[h, x, a, y] += 1.0
            returns[k] += rewards[h, x, a]
            x = y
    return returns
