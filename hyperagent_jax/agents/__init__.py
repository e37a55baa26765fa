"""The agents, by name."""

from hyperagent_jax.agents import hyperagent

# name -> module with a frozen dataclass `Config` and make_agent(config, spec) -> Agent
AGENTS = {"hyperagent": hyperagent}
