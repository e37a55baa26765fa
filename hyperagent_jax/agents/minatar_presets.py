"""Settings of agents for MinAtar: one configuration for all games."""

from typing import Any

from hyperagent_jax.agents import presets

# Network and schedule of Young and Tian: one update of 32 transitions per 4 interactions, and a target network
# copied every 1,000 interactions. Learning rate of Adam from the MinAtar DQN of Obando-Ceron and Castro.
_COMMON: dict[str, Any] = dict(
    hidden_sizes=(128,),
    batch_size=32,
    update_period=4,
    target_period=250,
    min_replay=5_000,
    replay_capacity=100_000,
    learning_rate=2.5e-4,
)
# Chosen from 0.01, 0.05 and 0.2 on two games, seed 100, 300,000 interactions: Freeway scores 44.1, 27.6 and 0.25,
# Asterix 6.9, 9.6 and 12.9. Relative to the best of them, 0.01 does best on average (0.77, 0.68 and 0.50).
_HYPERAGENT: dict[str, Any] = dict(unit_prior=True, prior_scale=0.01)
_LANGEVIN: dict[str, Any] = dict(noise_scale=1e-4)
_DISTRIBUTIONAL: dict[str, Any] = dict(v_max=30.0)  # covers the discounted returns of good policies in all games
# A smaller network, one update per 4 interactions as for all agents, and no shifts, because grids are only 10 by
# 10.
_BBF: dict[str, Any] = dict(
    channels=(16, 32, 32), updates_per_step=1, augmentation_pad=0, epsilon_updates=25_000, **_DISTRIBUTIONAL
)
_EPSILON: dict[str, Any] = dict(epsilon_end=0.05, epsilon_updates=25_000)
_AGENTS: dict[str, dict[str, Any]] = {
    "hyperagent": _HYPERAGENT,
    "hyperagent_ois": _HYPERAGENT,
    "hyperagent_optimistic": {"updates_per_step": 1},
    "ddqn": _EPSILON,
    "bootdqn": {},
    "ensemble_plus": {"prior_scale": 1.0},
    "ensemble_plus_os": {"prior_scale": 1.0},
    "hyperdqn": _HYPERAGENT,
    "enndqn": {},
    "noisy_net": {},
    "sane": {},
    "langevin_adam": _LANGEVIN,
    "adam_lmc": _LANGEVIN,
    "rainbow": _DISTRIBUTIONAL,
    "der": _DISTRIBUTIONAL,
    "bayes_ucbdqn": {},
    "bbf": _BBF,
}
CONFIGS = {name: presets.CONFIGS[name].with_overrides(**_COMMON, **own) for name, own in _AGENTS.items()}
