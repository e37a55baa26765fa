"""The agents, by name."""

from typing import Any

from hyperagent_jax import types
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents.base import Agent as Agent

# name -> module with a frozen dataclass `Config` and make_agent(config, spec) -> Agent
_MODULES = {"hyperagent": hyperagent}
CONFIGS: dict[str, type] = {name: module.Config for name, module in _MODULES.items()}


def make_agent(name: str, config: Any, spec: types.EnvironmentSpec) -> Agent:
    """Makes the agent of that name for an environment."""
    return _MODULES[name].make_agent(config, spec)
