"""The agents, by name.

`CONFIGS` maps their names to presets: `CONFIGS["hyperagent"](batch_size=64)` is a config. `make` builds an agent.
"""

from typing import Any

from hyperagent_jax import types
from hyperagent_jax.agents.base import Agent as Agent
from hyperagent_jax.agents.base import count_output_params as count_output_params
from hyperagent_jax.agents.base import count_params as count_params
from hyperagent_jax.agents.presets import CONFIGS as CONFIGS
from hyperagent_jax.agents.presets import Preset as Preset


def _preset(name: str) -> Preset:
    if name not in CONFIGS:
        raise ValueError(f"unknown agent {name!r}; choose one of {', '.join(CONFIGS)}")
    return CONFIGS[name]


def make(name: str, spec: types.EnvironmentSpec, **settings: Any) -> Agent:
    """Builds an agent for an environment.

    Args:
        name: one of `CONFIGS`.
        spec: the environment's spec.
        **settings: settings that differ from the defaults, for example `replay_capacity=100_000`.
    """
    return make_agent(name, _preset(name)(**settings), spec)


def make_agent(name: str, config: Any, spec: types.EnvironmentSpec) -> Agent:
    """Builds the agent called `name` for an environment, with a config made by `CONFIGS[name]`."""
    preset = _preset(name)
    if not isinstance(config, preset.config_class):
        raise ValueError(f"the config of {name} must be made by agents.CONFIGS[{name!r}], got {config!r}")
    return preset.make_agent(config, spec)._replace(name=name)
