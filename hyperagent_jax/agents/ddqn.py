"""Double DQN with epsilon-greedy exploration: HyperAgent's learner on a network without an index."""

import dataclasses

import optax

from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import epistemic


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """Double DQN's own settings.

    Attributes:
        epsilon_start: probability of a random action when learning starts.
        epsilon_end: probability of a random action after epsilon_updates updates.
        epsilon_updates: updates over which that probability falls linearly from epsilon_start to epsilon_end.
    """

    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_updates: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "epsilon_start", "epsilon_end", high=1)
        self.require(1, "epsilon_updates", high=base.MOST_STEPS)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds Double DQN for an environment."""
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    network = epistemic.make_plain_network(torso, spec.num_actions, observation)
    loss = losses.make_td_loss(network, kind="exact", double_q=config.double_q)
    epsilon = optax.linear_schedule(config.epsilon_start, config.epsilon_end, config.epsilon_updates)
    return base.make_agent(config, spec, network, loss, indices.no_index(), epsilon=epsilon)
