"""gymnasium's environments as dm_env environments."""

import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import gymnasium_adapter

gymnasium = pytest.importorskip("gymnasium")


class Counter(gymnasium.Env):
    """Counts up to 3 with action 5, down with action 4; terminates at 3, is truncated after 6 steps."""

    action_space = gymnasium.spaces.Discrete(2, start=4)
    observation_space = gymnasium.spaces.Discrete(7, start=-3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.time = 0
        return self.count, {}

    def step(self, action):
        self.count, self.time = self.count + {4: -1, 5: 1}[action], self.time + 1
        return self.count, 10.0 * self.count, self.count == 3, self.time == 6, {}


def test_termination_truncation_and_offsets():
    environment = gymnasium_adapter.GymnasiumEnvironment(Counter(), seed=0)
    assert environment.spec == types.EnvironmentSpec(2, (), 7)
    assert environment.action_spec().num_values == 2
    step = environment.reset()
    assert step.first() and step.observation == 3  # 0 is the fourth of -3 to 3
    steps = [environment.step(1) for _ in range(3)]
    assert [x.observation for x in steps] == [4, 5, 6] and [x.reward for x in steps] == [10.0, 20.0, 30.0]
    assert [x.discount for x in steps] == [1.0, 1.0, 0.0] and [x.last() for x in steps] == [False, False, True]
    environment.reset()
    steps = [environment.step(t % 2) for t in range(6)]
    assert [x.last() for x in steps] == [False] * 5 + [True]
    assert steps[-1].discount == 1.0  # truncated: its observation has a value


def test_the_same_seed_is_the_same_run():
    def play(seed):
        environment = gymnasium_adapter.GymnasiumEnvironment("CartPole-v1", seed)
        assert environment.spec == types.EnvironmentSpec(2, (4,))
        seen = []
        for _ in range(3):  # the second and third start are random too, and follow from the seed
            step = environment.reset()
            while not step.last():
                seen.append(step.observation)
                step = environment.step(len(seen) % 2)
        assert step.observation.dtype == np.float32
        return np.stack(seen)

    first = play(0)
    np.testing.assert_array_equal(first, play(0))
    assert not np.array_equal(first[0], play(1)[0])


def test_what_does_not_fit_is_one_line():
    for name, message in {
        "NoSuchGame-v3": "gymnasium cannot make NoSuchGame-v3: Environment `NoSuchGame` doesn't exist",
        "Pendulum-v1": "Pendulum-v1 does not have discrete actions: Box",
        "Blackjack-v1": "are neither arrays nor integers: wrap it in gymnasium.wrappers.FlattenObservation",
    }.items():
        with pytest.raises(errors.UserError) as error:
            gymnasium_adapter.GymnasiumEnvironment(name, seed=0)
        assert message in str(error.value)
