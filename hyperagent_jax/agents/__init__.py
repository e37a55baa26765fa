"""The agents, by name."""

from typing import Any

from hyperagent_jax import types
from hyperagent_jax.agents import bootdqn
from hyperagent_jax.agents import ddqn
from hyperagent_jax.agents import enndqn
from hyperagent_jax.agents import ensemble_plus
from hyperagent_jax.agents import ensemble_plus_os
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents import hyperagent_ois
from hyperagent_jax.agents import hyperagent_prioritized
from hyperagent_jax.agents import hyperagent_rmax
from hyperagent_jax.agents import hyperdqn
from hyperagent_jax.agents import hypermodel
from hyperagent_jax.agents.base import Agent as Agent
from hyperagent_jax.agents.base import count_output_params as count_output_params
from hyperagent_jax.agents.base import count_params as count_params

# name -> module with a frozen dataclass `Config` and make_agent(config, spec) -> Agent
_MODULES = {
    module.__name__.rpartition(".")[-1]: module
    for module in (
        hyperagent,
        hyperagent_ois,
        hyperagent_prioritized,
        hyperagent_rmax,
        ddqn,
        bootdqn,
        ensemble_plus,
        ensemble_plus_os,
        hyperdqn,
        hypermodel,
        enndqn,
    )
}
CONFIGS: dict[str, type] = {name: module.Config for name, module in _MODULES.items()}


def make_agent(name: str, config: Any, spec: types.EnvironmentSpec) -> Agent:
    """Makes the agent of that name for an environment."""
    if name not in CONFIGS:
        raise ValueError(f"unknown agent {name!r}; choose one of {', '.join(CONFIGS)}")
    if not isinstance(config, CONFIGS[name]):
        raise ValueError(f"the config of {name} must be made by agents.CONFIGS[{name!r}], got {config!r}")
    return _MODULES[name].make_agent(config, spec)
