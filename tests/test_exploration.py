"""The library's own exploration environments: in lock-step with bsuite and gymnasium, or by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax.environments import base
from hyperagent_jax.environments import classic_control
from hyperagent_jax.environments import door_key
from hyperagent_jax.environments import exploration
from hyperagent_jax.environments import finite
from hyperagent_jax.environments import registry


def play(environment, policy, num_episodes=1, seed=0):
    """Returns the episodes of policy(observation): lists of (action, TimeStep), the first with action None."""

    @jax.jit
    def step(state, action, key):
        return environment.step(state, action, environment.draw(key))

    episodes, key = [], jax.random.key(seed)
    for _ in range(num_episodes):
        key, noise_key = jax.random.split(key)
        state, timestep = environment.reset(None, environment.draw(noise_key))
        episodes.append([(None, timestep)])
        while not timestep.last:
            key, noise_key = jax.random.split(key)
            action = np.int32(policy(timestep.observation))
            state, timestep = step(state, action, noise_key)
            episodes[-1].append((action, timestep))
    return episodes


def returns_of(environment, policy, num_episodes, max_steps, seed=0):
    """Returns of a policy in episodes that run side by side, [num_episodes]."""

    def episode(key):
        start = environment.reset(None, environment.draw(key))

        def body(carry, t):
            (state, timestep), done, total = carry
            noise = environment.draw(jax.random.fold_in(key, t))
            state, timestep = environment.step(state, policy(timestep.observation), noise)
            return ((state, timestep), done | timestep.last, total + jnp.where(done, 0.0, timestep.reward)), None

        carry = (start, jnp.zeros((), bool), jnp.zeros(()))
        return jax.lax.scan(body, carry, jnp.arange(max_steps))[0][2]

    return np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(seed), num_episodes)))


@pytest.mark.parametrize("name", exploration.names())
def test_specifications_are_true(name):
    environment = registry.make(f"explore/{name}")
    spec = environment.spec
    noise = environment.draw(jax.random.key(0))
    state, first = environment.reset(None, noise)
    following, timestep = environment.step(state, jnp.int32(1), noise)
    expected, dtype = "int32" if spec.num_states else spec.dtype, lambda x: x.dtype
    for shown, before, after in ((first, state, state), (timestep, state, following)):
        assert shown.observation.shape == spec.observation_shape and shown.observation.dtype == expected
        assert (shown.reward.dtype, shown.discount.dtype, shown.last.dtype) == ("float32", "float32", "bool")
        assert shown.reward.shape == shown.discount.shape == shown.last.shape == ()
        assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, after)
        assert jax.tree.map(dtype, before) == jax.tree.map(dtype, after)
    assert float(first.discount) == 1.0 and not first.last


# MountainCar


def pump(observation):
    """Pushes where the car already goes, which climbs the hill."""
    return 2 if observation[1] >= 0 else 0


@pytest.mark.parametrize("is_scaled", [False, True])
def test_mountain_car_is_gymnasiums(is_scaled):
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make("MountainCar-v0").unwrapped
    scale = np.array([0.9, 0.07]) if is_scaled else 1.0
    shift = np.array([-0.3, 0.0]) if is_scaled else 0.0
    for policy, cost in ((pump, 0.0), (lambda o: 1, 0.001), (lambda o: 2 * (o[0] < -0.5), 0.001)):
        environment = classic_control.make_mountain_car(cost, is_scaled=is_scaled)
        (episode,) = play(environment, policy)
        (_, start), *steps = episode
        theirs.reset(seed=0)
        theirs.state = tuple((np.asarray(start.observation, float) * scale + shift).tolist())
        assert -0.6 <= theirs.state[0] <= -0.4 and theirs.state[1] == 0.0
        for t, (action, timestep) in enumerate(steps):
            observation, _, terminated, _, _ = theirs.step(int(action))
            shown = np.asarray(timestep.observation) * scale + shift
            np.testing.assert_allclose(shown, observation, atol=1e-4)
            assert float(timestep.discount) == 1.0 - terminated
            assert bool(timestep.last) == (terminated or t == 199)
            assert float(timestep.reward) == pytest.approx(terminated - cost * (action != 1))
        # The pump reaches the goal; the others are truncated, and the agent bootstraps there.
        assert len(steps) < 200 if policy is pump else len(steps) == 200 and not terminated


def test_mountain_car_pays_only_the_goal():
    pumped = returns_of(registry.make("explore/mountain_car"), lambda o: jnp.where(o[1] >= 0, 2, 0), 50, 200)
    np.testing.assert_array_equal(pumped, 1.0)
    # Every step of the pump is a push: the return tells how many there were, between 100 and 200.
    costly = returns_of(registry.make("explore/mountain_car_cost"), lambda o: jnp.where(o[1] >= 0, 2, 0), 50, 200)
    assert np.all((costly > 0.8) & (costly < 0.9))
    np.testing.assert_allclose(costly * 1_000, np.round(costly * 1_000), atol=1e-2)
    lazy = returns_of(registry.make("explore/mountain_car_cost"), lambda o: 1, 5, 200)
    np.testing.assert_array_equal(lazy, 0.0)


# Swing-up


def test_swingup_is_bsuites():
    cartpole = pytest.importorskip("bsuite.environments.cartpole")
    swingup = pytest.importorskip("bsuite.experiments.cartpole_swingup.cartpole_swingup")
    environment = registry.make("explore/swingup")
    theirs, step, rng = swingup.CartpoleSwingup(seed=0), jax.jit(environment.step), np.random.default_rng(0)
    rewarded = ended = 0
    for _ in range(300):  # single steps from states of all kinds, many of them upright and central
        near = rng.random() < 0.5
        x, x_dot, theta, theta_dot = rng.normal(size=4) * ([0.7, 1, 0.5, 0.7] if near else [2, 2, 3, 3])
        steps = int(rng.integers(0, 1_001))
        theirs._state = cartpole.CartpoleState(x, x_dot, theta, theta_dot, steps * 0.01)
        theirs._reset_next_step = False
        numbers = [jnp.float32(value) for value in (x, x_dot, theta, theta_dot)]
        action = int(rng.integers(3))
        after = theirs.step(action)
        state, timestep = step(
            classic_control.SwingupState(*numbers, jnp.int32(steps)), np.int32(action), jnp.zeros(4)
        )
        np.testing.assert_allclose(timestep.observation, after.observation[0], atol=2e-5)
        # 1,000 times 0.01 is less than 10 in bsuite's sum and is not here: see the whole episode below.
        if steps < 999:
            assert (bool(timestep.last), float(timestep.discount)) == (after.last(), after.discount)
        assert float(timestep.reward) == pytest.approx(after.reward)
        rewarded, ended = rewarded + (after.reward > 0.5), ended + after.last()
    assert rewarded > 20 and ended > 20


def test_swingup_ends_with_bsuites_episode():
    swingup = pytest.importorskip("bsuite.experiments.cartpole_swingup.cartpole_swingup")
    theirs = swingup.CartpoleSwingup(seed=0)
    theirs.reset()
    length = 1
    while not theirs.step(1).last():
        length += 1
    (episode,) = play(registry.make("explore/swingup"), lambda o: 1)
    assert len(episode) - 1 == length == 1_001
    assert float(episode[-1][1].discount) == 0.0  # the time is observed, so its end is one
    assert sum(float(timestep.reward) for _, timestep in episode) == 0.0
    # All the way to one side: each step costs 0.1, and the edge ends the episode.
    (episode,) = play(registry.make("explore/swingup"), lambda o: 2)
    assert len(episode) - 1 < 200 and float(episode[-1][1].discount) == 0.0
    assert sum(float(timestep.reward) for _, timestep in episode) == pytest.approx(-0.1 * (len(episode) - 1))


# Finite environments


def river_swim_tables():
    """RiverSwim once more: [state, action, state] and [state, action]."""
    transitions, rewards = np.zeros((6, 2, 6)), np.zeros((6, 2))
    for x in range(6):
        transitions[x, 0, max(x - 1, 0)] = 1.0
    transitions[0, 1, [0, 1]] = 0.4, 0.6
    for x in range(1, 5):
        transitions[x, 1, [x - 1, x, x + 1]] = 0.05, 0.6, 0.35
    transitions[5, 1, [4, 5]] = 0.4, 0.6
    rewards[0, 0], rewards[5, 1] = 0.005, 1.0
    return transitions, rewards


def test_river_swim_has_its_optimal_value():
    transitions, rewards = river_swim_tables()
    discounted = np.zeros(6)
    for _ in range(3_000):  # value iteration
        discounted = (rewards + 0.99 * transitions @ discounted).max(-1)
    right = (rewards + 0.99 * transitions @ discounted).argmax(-1)
    np.testing.assert_array_equal(right, 1)  # against the current from everywhere
    values = np.zeros(6)
    for _ in range(100):  # what going right is worth in 100 steps
        values = rewards[:, 1] + transitions[:, 1] @ values
    environment = registry.make("explore/river_swim")
    upstream = returns_of(environment, lambda o: 1, 4_000, 100)
    error = upstream.std() / np.sqrt(4_000)
    assert abs(upstream.mean() - values[0]) < 4 * error and error < 0.3
    downstream = returns_of(environment, lambda o: 0, 3, 100)
    np.testing.assert_allclose(downstream, 0.5, rtol=1e-5)
    (episode,) = play(environment, lambda o: 1)
    assert len(episode) == 101 and float(episode[-1][1].discount) == 1.0  # truncated


def test_finite_environments_draw_their_transitions():
    transitions = np.array([[[0.5, 0.25], [0.0, 1.0]], [[1.0, 0.0], [0.1, 0.2]]])
    environment = finite.make_finite(transitions, np.array([[1.0, 2.0], [3.0, 4.0]]), max_steps=7)
    step = jax.jit(jax.vmap(environment.step, (None, None, 0)))
    keys = jax.random.split(jax.random.key(0), 20_000)
    noise = jax.vmap(environment.draw)(keys)
    for x in range(2):
        for a in range(2):
            state = finite.FiniteState(jnp.int32(x), jnp.int32(6))
            following, timestep = step(state, jnp.int32(a), noise)
            np.testing.assert_array_equal(timestep.reward, 1 + 2 * x + a)
            ended = np.asarray(timestep.discount) == 0.0
            shares = [np.mean((following.position == y) & ~ended) for y in range(2)] + [ended.mean()]
            expected = [*transitions[x, a], 1 - transitions[x, a].sum()]
            np.testing.assert_allclose(shares, expected, atol=0.012)
            np.testing.assert_array_equal(timestep.last, True)  # the seventh step


def test_chain_by_hand():
    environment = registry.make("explore/chain_20")
    right = np.random.default_rng(42).integers(2, size=20)
    assert 0 < right.sum() < 20
    (episode,) = play(environment, lambda o: right[o])
    assert [int(timestep.observation) for _, timestep in episode[:-1]] == list(range(20))
    assert [float(timestep.reward) for _, timestep in episode] == [0.0] * 20 + [1.0]
    assert float(episode[-1][1].discount) == 0.0
    (episode,) = play(environment, lambda o: right[o] if o < 5 else 1 - right[o])  # to and fro between 4 and 5
    places = [int(timestep.observation) for _, timestep in episode]
    assert places == [0, 1, 2, 3, 4] + [5, 4] * 10 + [5]
    assert float(episode[-1][1].discount) == 1.0 and sum(float(t.reward) for _, t in episode) == 0.0
    # 20 right moves in 25, none of the left ones at the left end: chance finds it about never.
    policy = np.full((20, 2), 0.5)
    alive = np.eye(21)[0]
    for _ in range(25):
        following = np.zeros(21)
        following[20] = alive[20]
        for x in range(20):
            following[x + 1] += policy[x, 0] * alive[x]
            following[max(x - 1, 0)] += policy[x, 1] * alive[x]
        alive = following
    assert 1 / 40_000 < alive[20] < 1 / 20_000


# DoorKey

L, R, F, PICK, DROP, TOGGLE, DONE = range(7)


def door_key_state(agent, direction, key, wall, door_row):
    as_array = functools.partial(jnp.asarray, dtype=jnp.int32)
    return door_key.DoorKeyState(
        as_array(agent), as_array(direction), as_array(key), jnp.zeros((), bool), as_array(wall),
        as_array(door_row), as_array(0), as_array(0),
    )  # fmt: skip


def test_door_key_by_hand():
    """MiniGrid's rules, followed on paper: 6 by 6 with a wall in the third column inside and its door in row 1.

    The agent starts at the top left and looks to the right; the key lies right of it.
    """
    environment = door_key.make_door_key(6)
    state = door_key_state([0, 0], 0, [1, 0], 2, 1)
    # (action, agent, direction, carries, key's cell, door)
    script = [
        (F, (0, 0), 0, False, (1, 0), 0),  # the key is in the way
        (DROP, (0, 0), 0, False, (1, 0), 0),  # nothing to put down
        (DONE, (0, 0), 0, False, (1, 0), 0),
        (PICK, (0, 0), 0, True, None, 0),
        (PICK, (0, 0), 0, True, None, 0),
        (F, (1, 0), 0, True, None, 0),
        (F, (1, 0), 0, True, None, 0),  # the wall
        (DROP, (1, 0), 0, True, None, 0),  # not into the wall
        (R, (1, 0), 1, True, None, 0),
        (DROP, (1, 0), 1, False, (1, 1), 0),
        (F, (1, 0), 1, False, (1, 1), 0),
        (PICK, (1, 0), 1, True, None, 0),
        (F, (1, 1), 1, True, None, 0),
        (L, (1, 1), 0, True, None, 0),
        (F, (1, 1), 0, True, None, 0),  # the locked door
        (DROP, (1, 1), 0, True, None, 0),  # not onto the door
        (TOGGLE, (1, 1), 0, True, None, 2),
        (TOGGLE, (1, 1), 0, True, None, 1),
        (F, (1, 1), 0, True, None, 1),  # closed again
        (TOGGLE, (1, 1), 0, True, None, 2),
        (F, (2, 1), 0, True, None, 2),
        (F, (3, 1), 0, True, None, 2),
        (L, (3, 1), 3, True, None, 2),
        (F, (3, 0), 3, True, None, 2),
        (F, (3, 0), 3, True, None, 2),  # the outer wall
        (R, (3, 0), 0, True, None, 2),
        (R, (3, 0), 1, True, None, 2),
        (F, (3, 1), 1, True, None, 2),
        (F, (3, 2), 1, True, None, 2),
        (DROP, (3, 2), 1, True, None, 2),  # not onto the goal
        (F, (3, 3), 1, True, None, 2),  # the goal
    ]
    step = jax.jit(environment.step)
    for action, agent, direction, carries, key, door in script:
        state, timestep = step(state, jnp.int32(action), None)
        assert (tuple(state.agent.tolist()), int(state.direction)) == (agent, direction)
        assert (bool(state.carries), int(state.door)) == (carries, door)
        assert carries or tuple(state.key.tolist()) == key
        is_goal = agent == (3, 3)
        assert bool(timestep.last) == is_goal and float(timestep.discount) == 1.0 - is_goal
        assert float(timestep.reward) == pytest.approx(is_goal * (1 - 0.9 * len(script) / 360))
    # Without the key the door stays locked.
    state, _ = step(door_key_state([1, 1], 0, [0, 0], 2, 1), jnp.int32(TOGGLE), None)
    assert int(state.door) == door_key.LOCKED
    # After 360 steps the episode is truncated.
    state, timestep = step(state._replace(steps=jnp.int32(359)), jnp.int32(L), None)
    assert bool(timestep.last) and float(timestep.discount) == 1.0


def test_door_key_shows_its_state():
    environment = door_key.make_door_key(5)
    state, timestep = jax.jit(environment.step)(door_key_state([0, 1], 1, [0, 0], 1, 1), jnp.int32(R), None)
    one_hots = ([1, 0, 0], [0, 1, 0], [0, 0, 1, 0], [1, 0, 0], [1, 0, 0], [0], [0, 1, 0], [0, 1, 0], [1, 0, 0])
    np.testing.assert_array_equal(timestep.observation, np.concatenate(one_hots))
    state, _ = jax.jit(environment.step)(state, jnp.int32(R), None)
    _, timestep = jax.jit(environment.step)(state, jnp.int32(PICK), None)
    shown = np.concatenate(one_hots)
    shown[6:10], shown[10:16], shown[16] = [0, 0, 0, 1], 0, 1
    np.testing.assert_array_equal(timestep.observation, shown)


def test_door_key_layouts():
    environment = door_key.make_door_key(8)
    keys = jax.random.split(jax.random.key(0), 4_000)
    states, _ = jax.vmap(environment.reset, (None, 0))(None, keys)
    agent, key, wall = np.asarray(states.agent), np.asarray(states.key), np.asarray(states.wall)
    assert set(wall) == {1, 2, 3, 4} and set(np.asarray(states.door_row)) == set(range(5))
    assert set(np.asarray(states.direction)) == set(range(4))
    assert np.all(agent[:, 0] < wall) and np.all(key[:, 0] < wall) and np.all(np.any(agent != key, axis=1))
    for cells in (agent, key):  # uniform over the 6 cells left of a wall in column 1
        counts = np.bincount(cells[wall == 1, 1], minlength=6)
        np.testing.assert_allclose(counts / counts.sum(), 1 / 6, atol=0.05)


@pytest.mark.parametrize("size", [8, 16])
def test_fixed_door_key_can_be_solved(size):
    """Breadth-first search over the integer states: the goal, no state twice, as many as the rooms have."""
    environment = registry.make(f"explore/door_key_{size}_fixed")
    starts = [environment.reset(None, jax.random.key(seed)) for seed in (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *starts)
    (state, first), num_actions = starts[0], environment.spec.num_actions
    over = jax.jit(jax.vmap(jax.vmap(environment.step, (None, 0, None)), (0, None, None)))
    seen, frontier, depth, shortest = {int(first.observation)}, [state], 0, None
    width = 4 * size * size
    while frontier:
        depth += 1
        padded = frontier + [state] * (width - len(frontier))
        stacked = jax.tree.map(lambda *x: np.stack(x), *padded)
        following, timestep = jax.tree.map(np.asarray, over(stacked, jnp.arange(num_actions), None))
        new = []
        for i in range(len(frontier)):
            for a in range(num_actions):
                number = int(timestep.observation[i, a])
                if number in seen:
                    continue
                seen.add(number)
                if timestep.discount[i, a] == 0.0:
                    shortest = shortest or depth
                    assert float(timestep.reward[i, a]) == pytest.approx(1 - 0.9 * depth / (10 * size**2))
                else:
                    new.append(jax.tree.map(lambda x, i=i, a=a: x[i, a], following))
        frontier = new
    assert max(seen) < environment.spec.num_states
    side, wall = size - 2, int(state.wall)
    left, right = wall * side, (side - 1 - wall) * side
    # Locked without and with the key, closed and open; the goal is entered from above or from the left.
    doorway, goal = 4, 2 * (1 + (wall < side - 2))
    assert len(seen) == 4 * (left - 1) + 4 * left + 2 * 4 * (left + right - 1) + doorway + goal
    assert shortest == {8: 14, 16: 31}[size]


# Bandit


def test_bandit_pays_its_arms():
    environment = exploration.make_bandit(noise=0.1)
    rng = np.random.default_rng(0)
    hidden, arms = rng.normal(size=(24, 6)) * np.sqrt(2 / 6), rng.normal(size=(5, 24)) * np.sqrt(2 / 24)
    keys = jax.random.split(jax.random.key(0), 2_000)
    noise = jax.vmap(environment.draw)(keys)
    contexts, _ = jax.vmap(environment.reset, (None, 0))(None, noise)
    means = np.tanh(np.asarray(contexts) @ hidden.T) @ arms.T
    assert 0.5 < means.std() < 1.5 and set(means.argmax(1)) == set(range(5))
    for arm in range(5):
        _, timestep = jax.vmap(environment.step, (0, None, 0))(contexts, jnp.int32(arm), noise)
        np.testing.assert_allclose(timestep.reward, means[:, arm] + 0.1 * np.asarray(noise[1]), atol=1e-4)
        assert np.all(timestep.last) and np.all(timestep.discount == 0.0)


# A user's own


def test_own_environments_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_environments.py").write_text(
        "from hyperagent_jax.environments import finite\n"
        "def chain():\n    return finite.make_chain(3, max_steps=4)\n"
        "def number():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    environment = registry.make("my_environments:chain")
    assert isinstance(environment, base.Environment) and environment.spec.num_states == 3
    for name, message in {
        "no_such_module:chain": "'no_such_module:chain' (No module named 'no_such_module'): it must be",
        "my_environments:chains": "has no attribute 'chains'): it must be module:function",
        "my_environments:number": "my_environments:number must return an environments.base.Environment, got int",
        "my_environments:": "cannot make 'my_environments:'",
    }.items():
        with pytest.raises(errors.UserError) as error:
            registry.make(name)
        assert message in str(error.value) and "\n" not in str(error.value)
