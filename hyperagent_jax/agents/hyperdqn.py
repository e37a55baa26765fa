"""HyperDQN (Li et al., 2022): a hypermodel of the last layer's weights and bias, and a dependent target."""

import dataclasses

from hyperagent_jax.agents import hyperagent

make_agent = hyperagent.make_agent


@dataclasses.dataclass(frozen=True)
class Config(hyperagent.Config):
    """HyperAgent's settings with HyperDQN's network, perturbation and target (eq. q-loss-hyperdqn)."""

    network: str = "last_layer_bias"
    perturbation_distribution: str = "sphere"
    loss: str = "sampled"
    target_index: str = "dependent"
