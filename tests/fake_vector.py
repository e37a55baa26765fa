"""Scripted vector environments whose frames, rewards and ends are known, in envpool's way of resetting."""

import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base

# How an episode ends: a lost life continues with the same game and stack, the others begin a new game.
LIFE, OVER, CUT = "life", "over", "cut"


def frame(env, number, shape):
    """The frame with that number of an environment: no two of the first 60,000 are alike."""
    pixels = np.full(shape, number % 251, np.uint8)
    pixels[0, 0], pixels[0, 1] = env, number // 251
    return pixels


class FakeVector:
    """Environments that follow scripts, lists of (steps of an episode, how it ends), over and over.

    A step's reward is 1 + its frame's number, its score ten times that; actions are recorded and change nothing.
    """

    def __init__(self, scripts, stack_shape=(4, 6, 5), num_actions=3, batch_size=None):
        self.num_envs, self.stack_shape = len(scripts), stack_shape
        self.spec = types.EnvironmentSpec(num_actions, (*stack_shape[1:], stack_shape[0]))
        self.actions = [[] for _ in scripts]
        self._scripts = scripts
        self.batch_size = batch_size or self.num_envs
        self._numbers = np.zeros(self.num_envs, int)
        self._episodes = np.zeros(self.num_envs, int)
        self._steps = np.zeros(self.num_envs, int)
        self._ended = [OVER] * self.num_envs  # how the last episode ended; None inside one
        self._stacks = np.zeros((self.num_envs, *stack_shape), np.uint8)
        self._waiting = []

    def _advance(self, env):
        """One step: (is_first, reward, terminated, last, game_over)."""
        number = self._numbers[env]
        self._numbers[env] += 1
        ended, self._ended[env] = self._ended[env], None
        newest = frame(env, number, self.stack_shape[1:])
        if ended in (OVER, CUT):
            self._stacks[env] = newest
        else:
            self._stacks[env] = np.concatenate([self._stacks[env][1:], newest[None]])
        if ended:
            self._steps[env] = 0
            return True, 0.0, False, False, False
        self._steps[env] += 1
        length, kind = self._scripts[env][self._episodes[env] % len(self._scripts[env])]
        if self._steps[env] < length:
            return False, 1.0 + number, False, False, False
        self._episodes[env] += 1
        self._ended[env] = kind
        return False, 1.0 + number, kind != CUT, True, kind != LIFE

    def _step(self, envs):
        columns = zip(*map(self._advance, envs), strict=True)
        first, rewards, terminated, last, game_over = map(np.array, columns)
        return base.VectorStep(
            np.array(envs),
            self._stacks[envs].copy(),
            first,
            rewards.astype(np.float32),
            10 * rewards,
            terminated,
            last,
            game_over,
        )

    def reset(self):
        self._waiting = list(range(self.num_envs))
        return self.recv()

    def send(self, actions, env_ids):
        for action, env in zip(actions, env_ids, strict=True):
            self.actions[env].append(int(action))
            self._waiting.append(int(env))

    def recv(self):
        envs, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
        return self._step(envs)

    def close(self):
        self._waiting = []
