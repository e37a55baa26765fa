"""What every agent is made of."""

import dataclasses
from typing import Any, NamedTuple

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import indices
from hyperagent_jax import learner as learner_lib
from hyperagent_jax.networks import epistemic


class Agent(NamedTuple):
    """An agent: pure functions and the settings they were made with.

    Attributes:
        config: its Config.
        network: the epistemic network.
        learner: trains it.
        actor: acts with it.
        evaluation_actor: acts in evaluation episodes.
        perturbation: distribution of the perturbation z.
    """

    config: Any
    network: epistemic.EpistemicNetwork
    learner: learner_lib.Learner
    actor: actor_lib.Actor
    evaluation_actor: actor_lib.Actor
    perturbation: indices.IndexDistribution


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings that all agents share; defaults of the paper and its released code for DeepSea.

    Attributes:
        hidden_sizes: widths of the torso's layers; the last one is the number of features H.
        learning_rate: Adam's learning rate.
        adam_eps: Adam's epsilon.
        max_grad_norm: the gradient is clipped to this global norm.
        lazy_adam: update only the rows of the first layer that a batch touches. Equal to Adam up to float
            rounding, and much faster when there are many states.
        discount: discount factor gamma.
        batch_size: transitions per update.
        target_period: updates between two copies of the online into the target network.
        min_replay: interactions with uniformly random actions before learning starts.
        replay_capacity: transitions the replay holds.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    adam_eps: float = 1.5e-4
    max_grad_norm: float = 10.0
    lazy_adam: bool = True
    discount: float = 0.99
    batch_size: int = 128
    target_period: int = 4
    min_replay: int = 128
    replay_capacity: int = 1_000_000
