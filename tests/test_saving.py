"""Saved agents act in another process as they did in this one."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hyperagent_jax as hx
from hyperagent_jax import checkpoint
from hyperagent_jax.environments import probes

ROOT = pathlib.Path(__file__).resolve().parents[1]
STATES = hx.EnvironmentSpec(3, (), 12)
ARRAYS = hx.EnvironmentSpec(3, (4,))
SMALL = dict(hidden_sizes=(8, 5), replay_capacity=10)

ACT = """
import sys
import jax, numpy as np
import hyperagent_jax as hx
agent, variables = hx.load_agent(sys.argv[1])
for greedy_in in ("sample", "mean", "majority"):
    policy = hx.Policy(agent, variables, jax.random.key(5), greedy_in)
    print(*[policy(np.int32(t % 12), is_first=t % 7 == 0) for t in range(40)])
"""


def make_variables(agent):
    """Random numbers in the shapes of the agent's variables: its own would have to be compiled."""
    rng, shapes = np.random.default_rng(0), jax.eval_shape(agent.network.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)


def test_another_process_acts_the_same(tmp_path):
    agent = hx.agents.make("hyperagent_ois", STATES, index_dim=3, **SMALL)
    variables = make_variables(agent)
    hx.save_agent(tmp_path / "agent.npz", agent, variables)
    done = subprocess.run(
        [sys.executable, "-c", ACT, str(tmp_path / "agent.npz")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = []
    for greedy_in in ("sample", "mean", "majority"):
        policy = hx.Policy(agent, variables, jax.random.key(5), greedy_in)
        lines.append(" ".join(str(policy(np.int32(t % 12), is_first=t % 7 == 0)) for t in range(40)))
    assert done.stdout.splitlines() == lines
    assert lines[0] != lines[1] and len(set(lines[0])) > 2


@pytest.mark.parametrize("name", hx.agents.CONFIGS)
def test_every_agent_is_what_it_was(name, tmp_path):
    agent = hx.agents.make(name, ARRAYS, **SMALL)
    variables = make_variables(agent)
    hx.save_agent(tmp_path / "agent", agent, variables)
    loaded, read = hx.load_agent(tmp_path / "agent")
    assert (loaded.name, loaded.config, loaded.spec) == (name, agent.config, ARRAYS)
    assert jax.tree.structure(read) == jax.tree.structure(variables)
    jax.tree.map(np.testing.assert_array_equal, read, variables)


def test_errors_of_files(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        hx.load_agent(tmp_path / "missing")
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(ValueError, match="was not written by save_agent, or it is corrupt"):
        hx.load_agent(text)
    checkpoint.save(tmp_path / "run", {"x": jnp.zeros(2)}, {"identity": {}})
    with pytest.raises(ValueError, match="was not written by save_agent"):
        hx.load_agent(tmp_path / "run")
    agent = hx.agents.make("ddqn", ARRAYS, **SMALL)
    variables = make_variables(agent)
    hx.save_agent(tmp_path / "agent", agent, variables)
    facts = checkpoint.load_facts(tmp_path / "agent")
    for changed, message in (
        ({"agent": "dqn3"}, "holds the agent 'dqn3', which this version does not have"),
        ({"config": {**facts["config"], "width": 3}}, "settings that this version of ddqn does not have: width"),
        ({"config": {**facts["config"], "batch_size": "3"}}, 'batch_size must be a whole number, got "3"'),
        ({"config": {**facts["config"], "hidden_sizes": [9]}}, "belongs to a different agent or version"),
    ):
        checkpoint.save(tmp_path / "changed", variables, {**facts, **changed})
        with pytest.raises(ValueError, match=message):
            hx.load_agent(tmp_path / "changed")


def test_errors_of_saving(tmp_path):
    agent, other = (hx.agents.make("ddqn", ARRAYS, **{**SMALL, "hidden_sizes": (n,)}) for n in (5, 6))
    with pytest.raises(ValueError, match="use agent.learner.variables"):
        hx.save_agent(tmp_path / "agent", agent, make_variables(other))
    with pytest.raises(ValueError, match="only agents from agents.make"):
        hx.save_agent(tmp_path / "agent", agent._replace(name=""), make_variables(agent))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["hyperagent", "ensemble_plus_os", "hyperagent_rmax", "enndqn"])
def test_policy_follows_evaluation(name):
    """It acts as the agent's evaluation actor does, step by step, with its rules for indices."""
    agent = hx.agents.make(name, STATES, index_dim=3, **SMALL)
    variables, key = make_variables(agent), jax.random.key(5)
    actor = agent.evaluation_actor

    @jax.jit
    def act(observation, indices, is_first, key):
        noise = actor.draw(key)
        indices = actor.next_indices(indices, is_first, noise)
        values = jax.vmap(agent.network.apply, (None, None, 0))(variables, observation, indices)
        return actor.select(values, noise), indices

    policy = hx.Policy(agent, variables, key)
    for episode in range(2):
        episode_key = jax.random.fold_in(key, episode)
        indices = actor.draw(episode_key).indices
        for t in range(6):
            observation = jnp.int32((5 * t + episode) % 12)
            step_key = jax.random.fold_in(episode_key, t)
            action, indices = act(observation, indices, t == 0, step_key)
            # The first call starts an episode whether or not it says so.
            assert policy(observation, is_first=t == 0 and episode > 0) == int(action)


@pytest.mark.parametrize("name", ["hyperagent", "ensemble_plus", "hyperagent_rmax", "hypermodel", "ddqn"])
def test_policy_in_the_mean(name):
    agent = hx.agents.make(name, STATES, **SMALL)
    variables = make_variables(agent)
    policy = hx.Policy(agent, variables, jax.random.key(5), greedy_in="mean")
    for state in range(12):
        if agent.network.is_linear:
            expected = hx.posterior.mean_and_std(agent.network, variables, jnp.array([state]))[0][0]
        else:
            expected = agent.network.apply(variables, jnp.int32(state), jnp.zeros(4))
        assert policy(np.int32(state)) == int(np.argmax(expected))


def test_policy_of_the_majority():
    # Two of three members prefer action 1, the third prefers action 0 by so much that the mean does, too.
    agent = hx.agents.make("bootdqn", hx.EnvironmentSpec(2, (), 12), index_dim=3, **SMALL)
    coefficients = jnp.array([[0.0, 0.0, 9.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    agent = agent._replace(network=agent.network._replace(posterior=lambda params, o, prior: coefficients))
    variables = make_variables(agent)
    taken = {
        greedy_in: [
            hx.Policy(agent, variables, jax.random.key(seed), greedy_in)(np.int32(0)) for seed in range(20)
        ]
        for greedy_in in ("sample", "mean", "majority")
    }
    assert set(taken["mean"]) == {0} and set(taken["sample"]) == {0, 1}
    assert np.mean(taken["majority"]) > 0.9  # 17 of 32 votes or more, where 21 are expected


def test_policy_refuses_what_it_was_not_made_for():
    agent = hx.agents.make("hyperagent", ARRAYS, **SMALL)
    variables = make_variables(agent)
    with pytest.raises(ValueError, match="greedy_in must be one of sample, mean, majority, got 'max'"):
        hx.Policy(agent, variables, jax.random.key(0), "max")
    with pytest.raises(ValueError, match=r"observations must be \[4\], got \[1, 4\]"):
        hx.Policy(agent, variables, jax.random.key(0))(np.zeros((1, 4)))


def test_agents_know_their_environment():
    spec = probes.combined(0.9).environment.spec
    agent = hx.agents.make("ddqn", spec, **SMALL)
    assert (agent.name, agent.spec) == ("ddqn", spec)
