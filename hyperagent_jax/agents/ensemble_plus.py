"""Ensemble+ (Osband et al., 2018): bootstrapped DQN with a randomised prior function per member."""

import dataclasses

from hyperagent_jax.agents import bootdqn

make_agent = bootdqn.make_agent


@dataclasses.dataclass(frozen=True)
class Config(bootdqn.Config):
    """Settings of ensembles with priors that spread as HyperAgent's do at the start."""

    prior_scale: float = 30.0
