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

# On a CPU as many seeds are vmapped together: few enough for their tables to fit in a core's cache.
SEEDS_PER_CORE = 32


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


class Group(NamedTuple):
    """Seeds that are vmapped together, and the device that runs them."""

    seeds: slice
    device: jax.Device


def groups(
    num_seeds: int,
    seeds_per_group: int | None = None,
    *,
    on_cpu: int = SEEDS_PER_CORE,
    devices: Sequence[jax.Device] = (),
) -> list[Group]:
    """Divides seeds into groups and the groups among devices.

    Every device runs the whole program of its groups, so results do not depend on the number of devices; in their
    last bits they depend on the size of the groups.

    Args:
        num_seeds: number of seeds.
        seeds_per_group: size of a group; None for `on_cpu` on CPU and an even share per device on accelerators.
        on_cpu: size of a group on CPU.
        devices: the devices; all local ones by default.
    """
    devices = devices or jax.local_devices()
    own = on_cpu if devices[0].platform == "cpu" else -(-num_seeds // len(devices))
    size = seeds_per_group or own
    firsts = range(0, num_seeds, size)
    return [Group(slice(first, first + size), devices[i % len(devices)]) for i, first in enumerate(firsts)]


def compile_many(
    agent: Agent,
    mdp: mdps.FiniteMdp,
    seeds: types.Array,
    num_episodes: int,
    record: Record = regret,
    *,
    seeds_per_group: int | None = None,
    devices: Sequence[jax.Device] = (),
) -> Callable[[], Any]:
    """Compiles `run` for many seeds, whose records, numpy arrays, have a leading axis of seeds.

    Args:
        agent: the agent.
        mdp: a single MDP for all seeds, or arrays with a leading axis of seeds.
        seeds: whole numbers, [num_seeds].
        num_episodes: K.
        record: what to record of an episode.
        seeds_per_group: seeds that are vmapped together; see `groups`.
        devices: the devices; all local ones by default.
    """
    own_mdps = mdp.start.ndim == 2

    def one(mdp: mdps.FiniteMdp, seed: types.Array) -> Any:
        return run(agent, mdp, seed, num_episodes, record)

    many = jax.jit(jax.vmap(one, (0 if own_mdps else None, 0)))
    programs: dict[tuple[int, jax.Device], Any] = {}
    calls = []
    for group in groups(len(seeds), seeds_per_group, devices=devices):
        own = jax.tree.map(lambda x, own=group.seeds: x[own], mdp) if own_mdps else mdp
        arguments = jax.device_put((own, seeds[group.seeds]), group.device)
        key = (len(arguments[1]), group.device)
        if key not in programs:
            programs[key] = many.lower(*arguments).compile()
        calls.append((programs[key], arguments))

    def call() -> Any:
        records = [program(*arguments) for program, arguments in calls]  # all devices work while the first is read
        return jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(records))

    return call


def run_many(*arguments: Any, **options: Any) -> Any:
    """Calls `compile_many` with these arguments and runs the compiled program."""
    return compile_many(*arguments, **options)()
