"""Ensemble+ with optimistic sampling, the practical form of LSVI-PHE (Ishfaq et al., 2021)."""

import dataclasses

from hyperagent_jax.agents import ensemble_plus

make_agent = ensemble_plus.make_agent


@dataclasses.dataclass(frozen=True)
class Config(ensemble_plus.Config):
    """Ensemble+'s settings with the best of all members."""

    optimistic: bool = True
