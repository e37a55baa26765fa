"""Saves trained agents with everything that another process needs to act with them."""

import os
import pathlib
from typing import Any

import jax

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.agents import base

_KIND = "hyperagent_jax agent"


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def save_agent(path: str | os.PathLike, agent: base.Agent, variables: types.Variables) -> None:
    """Writes an agent's settings, its environment's spec and its variables to a file.

    Args:
        path: the file.
        agent: an agent built by `agents.make` or `agents.make_agent`.
        variables: the agent's variables, for example `agent.learner.variables(state)`.
    """
    if not agent.name or agent.spec is None:
        raise ValueError("this agent has no name: only agents from agents.make or agents.make_agent can be saved")
    expected = jax.eval_shape(agent.network.init, jax.random.key(0))
    if _shapes(variables) != _shapes(expected):
        raise ValueError(f"the variables do not fit this {agent.name} agent: use agent.learner.variables(state)")
    facts = {
        "kind": _KIND,
        "agent": agent.name,
        "config": config_lib.as_json(agent.config),
        "spec": agent.spec._asdict(),
    }
    checkpoint.save(path, variables, facts)


def load_agent(path: str | os.PathLike) -> tuple[base.Agent, types.Variables]:
    """Reads a file written by `save_agent`.

    Args:
        path: the file.

    Returns:
        The agent and its variables.
    """
    if not pathlib.Path(path).is_file():
        raise ValueError(f"saved agent {path} does not exist")
    try:
        facts = checkpoint.load_facts(path)
    except errors.UserError as error:
        raise ValueError(f"{path} was not written by save_agent, or it is corrupt") from error
    if facts.get("kind") != _KIND:
        raise ValueError(f"{path} was not written by save_agent")
    name, spec = facts.get("agent"), facts.get("spec")
    if not isinstance(name, str) or not isinstance(spec, dict) or not isinstance(facts.get("config"), dict):
        raise ValueError(f"{path} was not written by save_agent, or it is corrupt")
    if name not in agents.CONFIGS:
        raise ValueError(f"{path} holds the agent {name!r}, which this version does not have")
    settings = agents.CONFIGS[name].fields
    if unknown := sorted(set(facts["config"]) - set(settings)):
        raise ValueError(f"{path} has settings that this version of {name} does not have: {', '.join(unknown)}")
    try:
        config = agents.CONFIGS[name](
            **{key: config_lib.from_json(key, settings[key].type, x) for key, x in facts["config"].items()}
        )
        shape = tuple(spec["observation_shape"])
        agent = agents.make_agent(
            name,
            config,
            types.EnvironmentSpec(spec["num_actions"], shape, spec["num_states"], spec.get("dtype", "float32")),
        )
        return agent, checkpoint.load(path, jax.eval_shape(agent.network.init, jax.random.key(0)))
    except errors.UserError as error:
        raise ValueError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} was not written by save_agent, or it is corrupt") from error
