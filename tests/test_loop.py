"""The loop over Python environments: one dispatch per step, exact restoring, bsuite's agent interface."""

import dm_env
import jax
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import loop as loop_lib


class Corridor(dm_env.Environment):
    """Five cells with a noisy observation; right earns 1 at the end, and time is up after eight steps."""

    def __init__(self, seed):
        self._rng = np.random.RandomState(seed)

    def reset(self):
        self._place = self._time = 0
        return dm_env.restart(self._observation())

    def step(self, action):
        self._place, self._time = max(self._place + (1 if action else -1), 0), self._time + 1
        if self._place == 5:
            return dm_env.termination(1.0, self._observation())
        if self._time == 8:
            return dm_env.truncation(-0.5, self._observation())
        return dm_env.transition(0.25 * action, self._observation())

    def _observation(self):
        return np.float32([self._place, self._rng.rand()])

    def action_spec(self):
        return dm_env.specs.DiscreteArray(2)

    def observation_spec(self):
        return dm_env.specs.Array((2,), np.float32)


SPEC = types.EnvironmentSpec(2, (2,))
CONFIG = dict(hidden_sizes=(8, 8), batch_size=16, min_replay=20, replay_capacity=1000)


@pytest.fixture(scope="module")
def program():
    return _program("hyperagent")


def _program(name):
    return loop_lib.make_program(agents.make_agent(name, agents.CONFIGS[name](**CONFIG), SPEC))


def _loop(program, seed=0):
    return loop_lib.Loop(program, lambda: Corridor(seed), jax.random.key(1))


def _storage(loop):
    replay = loop.agent.state.replay
    return jax.tree.map(lambda x: np.asarray(x)[: int(replay.added)], replay.storage.transition)


def test_transitions_are_those_of_the_environment(program):
    """Repeats the actions by hand; truncation ends an episode but keeps its discount."""
    loop = _loop(program)
    metrics = loop.run(200)
    stored, environment = _storage(loop), Corridor(0)
    assert len(stored.a_tm1) == 200 and metrics.updates == 180
    timestep, returns, episodes, ends = environment.reset(), 0.0, 0, set()
    for t in range(200):
        np.testing.assert_array_equal(stored.o_tm1[t], timestep.observation)
        timestep = environment.step(int(stored.a_tm1[t]))
        np.testing.assert_array_equal(stored.o_t[t], timestep.observation)
        assert stored.r_t[t] == timestep.reward
        assert stored.discount_t[t] == np.float32(0.99) * timestep.discount
        returns += timestep.reward
        if timestep.last():
            ends.add(timestep.discount)
            episodes, finished, timestep = episodes + 1, returns, environment.reset()
    assert ends == {0.0, 1.0}  # both kinds of end came up
    assert loop.episodes == episodes == metrics.episodes
    assert metrics.returns == pytest.approx(finished, abs=1e-4)


def test_restored_is_unbroken(program):
    unbroken, first, second = _loop(program), _loop(program), _loop(program)
    unbroken.run(150)
    metrics = unbroken.run(50)
    first.run(150)
    second.restore(first.tree())
    assert (second.agent.steps, second.episodes) == (150, first.episodes)
    again = second.run(50)
    for expected, found in zip(metrics, again, strict=True):
        np.testing.assert_array_equal(expected, found)
    actions = [x.tree()["actions"] for x in (unbroken, second)]
    np.testing.assert_array_equal(*actions)
    assert len(actions[1]) == 201
    states = [x.agent.state._replace(key=None) for x in (unbroken, second)]
    for expected, found in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_runs_do_not_depend_on_how_many_steps_share_a_draw(program, monkeypatch):
    words = sum(leaf.size for leaf in jax.tree.leaves(program.draw(jax.random.key(0), 0)))
    monkeypatch.setattr(core_lib, "_NOISE_WORDS", 7 * words // (program.steps_per_draw + 1))
    other = _program("hyperagent")
    assert (program.steps_per_draw, other.steps_per_draw) == (256, 7)
    loops = _loop(program), _loop(other)
    for loop in loops:
        loop.run(50)
    for expected, found in zip(*map(_storage, loops), strict=True):
        np.testing.assert_array_equal(expected, found)
    # Programs for blocks of other lengths may round differently.
    for expected, found in zip(*(jax.tree.leaves(x.agent.state.learner) for x in loops), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_an_environment_that_does_not_repeat_itself_is_found_out(program):
    first, second = _loop(program, seed=0), _loop(program, seed=1)
    first.run(30)
    with pytest.raises(errors.UserError, match="the environment is not deterministic: seed its random numbers"):
        second.restore(first.tree())


def test_observations_of_double_precision_are_restored(program):
    class Double(Corridor):
        def _observation(self):
            return super()._observation().astype(np.float64) / 3

    first, second = (loop_lib.Loop(program, lambda: Double(0), jax.random.key(1)) for _ in range(2))
    first.run(30)
    second.restore(first.tree())
    assert second.agent.steps == 30


def test_a_transition_is_never_dropped(program):
    agent = loop_lib.OnlineAgent(program, jax.random.key(0))
    step = dm_env.restart(np.zeros(2, np.float32))
    agent.select_action(step)
    after = dm_env.transition(0.0, np.ones(2, np.float32))
    agent.update(step, 0, after)
    with pytest.raises(ValueError, match="twice without select_action"):
        agent.update(after, 0, after)


def test_an_episode_may_be_given_up(program):
    """The next one begins with its own observation, index and return."""
    agent = loop_lib.OnlineAgent(program, jax.random.key(0))
    first, far = np.float32([0, 0]), np.float32([100, -100])
    steps = [dm_env.restart(first), dm_env.transition(1.0, np.float32([1, 1]))]
    action = agent.select_action(steps[0])
    agent.update(steps[0], action, steps[1])
    agent.select_action(steps[1])
    action = agent.select_action(dm_env.restart(far))
    assert agent.state.is_first and agent.state.episode_return == 0.0
    agent.update(dm_env.restart(far), action, dm_env.termination(1.0, first))
    agent.select_action(dm_env.restart(first))
    np.testing.assert_array_equal(agent.state.replay.storage.transition.o_tm1[:2], [first, far])


def test_an_environment_may_use_one_array_for_all_observations(program):
    class Reusing(Corridor):
        def __init__(self, seed):
            super().__init__(seed)
            self._array = np.zeros(2, np.float32)

        def _observation(self):
            self._array[:] = super()._observation()
            return self._array

    first, second = _loop(program), loop_lib.Loop(program, lambda: Reusing(0), jax.random.key(1))
    for loop in (first, second):
        loop.run(60)
    for expected, found in zip(_storage(first), _storage(second), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_observations_have_one_type(program):
    agent = loop_lib.OnlineAgent(program, jax.random.key(0))
    step = dm_env.restart(np.zeros(2, np.int32))
    agent.update(step, agent.select_action(step), dm_env.transition(0.0, np.float32([1.5, 0.25])))
    with pytest.raises(ValueError, match="observation was int32 but a later one is float32: pass an `observe`"):
        agent.select_action(dm_env.transition(0.0, np.float32([1.5, 0.25])))


def test_variables_can_be_kept(program):
    loop = _loop(program)
    loop.run(30)
    kept = loop.agent.variables()
    before = jax.tree.map(np.array, kept)
    loop.run(10)
    now = loop.agent.variables()
    assert jax.tree.all(jax.tree.map(np.array_equal, before, kept))
    assert not jax.tree.all(jax.tree.map(np.array_equal, before, now))


def test_runs_end_with_the_episode_asked_for(program):
    loop = _loop(program)
    loop.run(10_000, max_episodes=3)
    assert loop.episodes == 3
    steps = loop.agent.steps
    assert float(loop.run(10, max_episodes=3).episodes) == 0 and loop.agent.steps == steps


@pytest.mark.parametrize("name", ["hyperagent", "bootdqn", "ddqn"])
def test_in_bsuites_own_experiment(name):
    """bsuite's baseline loop, unchanged, gives the transitions and parameters of ours."""
    experiment = pytest.importorskip("bsuite.baselines.experiment")
    program = _program(name)
    ours = _loop(program)
    ours.run(10_000, max_episodes=12)
    theirs = loop_lib.OnlineAgent(program, jax.random.key(1))
    experiment.run(theirs, Corridor(0), num_episodes=12)
    assert theirs.steps == ours.agent.steps
    # Their last transition is noted; whoever asks for another action will learn from it.
    theirs.select_action(dm_env.restart(np.zeros(2, np.float32)))
    for expected, found in zip(*(jax.tree.leaves(x.state.learner) for x in (ours.agent, theirs)), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_time_and_capacity_are_independent(program):
    """Nothing of the replay is copied by the dispatch of a step."""
    loop = _loop(program)
    loop.run(1)
    zero = np.float32(0)
    observation = np.zeros(2, np.float32)
    timestep = environments_base.TimeStep(observation, zero, zero, np.bool_(False))
    state = loop.agent.state
    noise = program.draw(state.key, 0)
    arguments = (state, core_lib.zero_metrics(), noise, 30, 30, np.int32(0), timestep, observation)
    text = program.proceed.lower(*arguments, is_learning=True).compile().as_text()
    assert "[1000,2]" in text
    assert not [line for line in text.splitlines() if "[1000" in line and " copy(" in line]
