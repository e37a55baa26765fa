"""The common interface of tabular agents, and their training loop."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of a FiniteMdp, which are needed to build an agent: S, A and H."""

    num_states: int
    num_actions: int
    horizon: int

    @property
    def pairs(self) -> tuple[int, int, int]:
        """Shape of an array with one number per stage, state and action."""
        return self.horizon, self.num_states, self.num_actions


def size_of(mdp: mdps.FiniteMdp) -> Size:
    """Returns the size of an MDP."""
    horizon, num_states, num_actions = mdp.rewards.shape
    return Size(num_states, num_actions, horizon)


class Episode(NamedTuple):
    """The `states` [H + 1] and `actions` [H] of an episode."""

    states: types.Array
    actions: types.Array

    @property
    def pairs(self) -> tuple[types.Array, types.Array, types.Array]:
        """Returns stages, states and actions, each [H], to index arrays [H, S, A, ...]."""
        return jnp.arange(self.actions.shape[0]), self.states[:-1], self.actions


class Policy(NamedTuple):
    """A policy that is greedy with respect to `q` [H, S, A], or uniformly random with probability `epsilon`.

    Probabilities are computed on demand, because acting needs only those of H states.
    """

    q: types.Array
    epsilon: types.Array | float = 0.0

    def probabilities(self, *place: types.Array | int) -> types.Array:
        """Returns action probabilities at one stage and state, [A], or everywhere, [H, S, A]."""
        q = self.q[place]
        return (1.0 - self.epsilon) * solvers.greedy(q) + self.epsilon / q.shape[-1]


class Agent(NamedTuple):
    """Pure functions of one agent, which knows the rewards [H, S, A] but not the transitions.

    Attributes:
        init: maps a key to the agent's state.
        policy: maps (state, rewards, key) to the Policy of the next episode.
        update: maps (state, rewards, episode, key) to the state after that episode.
    """

    init: Callable[[types.PRNGKey], Any]
    policy: Callable[[Any, types.Array, types.PRNGKey], Policy]
    update: Callable[[Any, types.Array, Episode, types.PRNGKey], Any]


def count(statistics: closed_form.Statistics, episode: Episode) -> closed_form.Statistics:
    """Returns the statistics after one more episode."""
    return closed_form.Statistics(
        statistics.visits.at[episode.pairs].add(1.0),
        statistics.moves.at[*episode.pairs, episode.states[1:]].add(1.0),
    )


def count_only(
    statistics: closed_form.Statistics, rewards: types.Array, episode: Episode, key: types.PRNGKey
) -> closed_form.Statistics:
    """Implements `Agent.update` for agents whose state consists only of the statistics."""
    del rewards, key
    return count(statistics, episode)


def _draw(cumulative: types.Array, uniform: types.Array) -> types.Array:
    """Returns the first position where cumulative probabilities, which end at one, exceed a number in [0, 1)."""
    return jnp.sum(uniform >= cumulative, dtype=jnp.int32)


def _cumulative(probabilities: types.Array) -> types.Array:
    total = jnp.cumsum(probabilities, -1)
    return total / total[..., -1:]  # so that the last one is exactly one


class Task(NamedTuple):
    """An MDP prepared for sampling: with cumulative probabilities and the optimal values that define regret."""

    mdp: mdps.FiniteMdp
    moves: types.Array
    start: types.Array
    optimum: types.Array


def make_task(mdp: mdps.FiniteMdp) -> Task:
    """Prepares an MDP for sampling."""
    return Task(mdp, _cumulative(mdp.transitions), _cumulative(mdp.start), solvers.optimal_return(mdp))


def rollout(task: Task, policy: Policy, key: types.PRNGKey) -> Episode:
    """Samples one episode of a policy."""
    horizon = policy.q.shape[0]
    uniforms = jax.random.uniform(key, (horizon + 1, 2))
    first = _draw(task.start, uniforms[-1, 0])

    def step(state: types.Array, h: types.Array) -> tuple[types.Array, tuple[types.Array, types.Array]]:
        action = _draw(_cumulative(policy.probabilities(h, state)), uniforms[h, 0])
        return _draw(task.moves[h, state, action], uniforms[h, 1]), (state, action)

    last, (states, actions) = jax.lax.scan(step, first, jnp.arange(horizon))
    return Episode(jnp.append(states, last), actions)


# What to record of an episode: a function of the task, the policy, the episode and the agent's state after it.
Record = Callable[[Task, Policy, Episode, Any], Any]


def regret(task: Task, policy: Policy, episode: Episode, state: Any) -> types.Array:
    """Returns the exact regret Delta_k of the episode's policy: the optimal value minus its value."""
    del episode, state
    return task.optimum - solvers.policy_return(task.mdp, policy.probabilities())


def episode_return(task: Task, policy: Policy, episode: Episode, state: Any) -> types.Array:
    """Returns the sum of the episode's rewards."""
    del policy, state
    return jnp.sum(task.mdp.rewards[episode.pairs])


def advance(
    agent: Agent, task: Task, state: Any, key: types.PRNGKey, first: int, num_episodes: int, record: Record
) -> tuple[Any, Any]:
    """Runs the episodes `first`, `first` + 1, ...; returns the agent's state and the stacked records."""

    def one_episode(state: Any, k: types.Array) -> tuple[Any, Any]:
        key_k = jax.random.fold_in(key, k)
        policy = agent.policy(state, task.mdp.rewards, types.fold_in_tag(key_k, "policy"))
        episode = rollout(task, policy, types.fold_in_tag(key_k, "episode"))
        state = agent.update(state, task.mdp.rewards, episode, types.fold_in_tag(key_k, "update"))
        return state, record(task, policy, episode, state)

    return jax.lax.scan(one_episode, state, first + jnp.arange(num_episodes))


def run(agent: Agent, mdp: mdps.FiniteMdp, seed: types.Array, num_episodes: int, record: Record = regret) -> Any:
    """Returns the records of an agent that learns from scratch; can be vmapped over MDPs and seeds."""
    key = prng.hash_key(jax.random.key(seed))
    state = agent.init(types.fold_in_tag(key, "init"))
    return advance(agent, make_task(mdp), state, key, 0, num_episodes, record)[1]


def compile_many(
    agent: Agent,
    mdp: mdps.FiniteMdp,
    seeds: types.Array,
    num_episodes: int,
    record: Record = regret,
    *,
    block: int = 32,
    devices: Sequence[jax.Device] = (),
) -> Callable[[], Any]:
    """Compiles `run` for many seeds as one call, whose records have a leading axis of seeds.

    Args:
        agent: the agent.
        mdp: a single MDP for all seeds, or arrays with a leading axis of seeds.
        seeds: whole numbers, [num_seeds].
        num_episodes: K.
        record: what to record of an episode.
        block: number of seeds vmapped together: few enough for their tables to fit in a core's cache.
        devices: devices over which to split the seeds evenly; empty for the default device.
    """
    own_mdps = mdp.start.ndim == 2

    def many(mdp: mdps.FiniteMdp, seeds: types.Array) -> Any:
        def one(x: Any) -> Any:
            mdp_of_seed, seed = x if own_mdps else (mdp, x)
            return run(agent, mdp_of_seed, seed, num_episodes, record)

        return jax.lax.map(one, (mdp, seeds) if own_mdps else seeds, batch_size=block)

    if devices:
        over_seeds, whole = jax.P("seeds"), jax.P()
        mesh = jax.sharding.Mesh(np.array(devices), ("seeds",))
        many = jax.shard_map(
            many,
            mesh=mesh,
            in_specs=(over_seeds if own_mdps else whole, over_seeds),
            out_specs=over_seeds,
            check_vma=False,  # the initial carry is the same for all seeds
        )
    compiled = jax.jit(many).lower(mdp, seeds).compile()
    placed = jax.device_put((mdp, seeds), compiled.input_shardings[0])
    return lambda: compiled(*placed)


def run_many(*arguments: Any, **options: Any) -> Any:
    """Calls `compile_many` with these arguments and runs the compiled program."""
    return compile_many(*arguments, **options)()
