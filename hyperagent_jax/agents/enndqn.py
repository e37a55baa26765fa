"""ENNDQN (Osband et al., 2023): an epinet, a Gaussian index, no perturbation, and a dependent target."""

import dataclasses

from hyperagent_jax.agents import hyperagent

make_agent = hyperagent.make_agent


@dataclasses.dataclass(frozen=True)
class Config(hyperagent.Config):
    """HyperAgent's settings with ENNDQN's network, index and target (eq. q-loss-enn)."""

    network: str = "epinet"
    index_distribution: str = "gaussian"
    sigma: float = 0.0
    prior_scale: float = 1.0
    loss: str = "sampled"
    target_index: str = "dependent"
