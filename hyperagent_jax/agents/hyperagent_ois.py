"""HyperAgent with optimistic index sampling in acting and in the target."""

import dataclasses

from hyperagent_jax.agents import hyperagent

make_agent = hyperagent.make_agent


@dataclasses.dataclass(frozen=True)
class Config(hyperagent.Config):
    """HyperAgent's settings with the best of five indices."""

    num_ois: int = 5
