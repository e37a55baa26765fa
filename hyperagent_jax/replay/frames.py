"""Replay of pixels in host memory: stores every frame once, and forms stacks and n-step returns from rows.

A row is one time step of one environment: its newest frame, the action taken, the perturbation and the prior's
coefficients. The rows of an environment are consecutive; an n-step transition starts in one row and ends up to n
rows later. A transition can be sampled as long as all of its rows are stored.
"""

import collections
from concurrent import futures
import math
from typing import Any, NamedTuple, cast

import numpy as np

from hyperagent_jax import checkpoint
from hyperagent_jax import types
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.replay import block_sums
from hyperagent_jax.replay import sampling

_NONE = -1


class Settings(NamedTuple):
    """The settings that determine the arrays of a replay.

    Attributes:
        capacity: largest number of transitions.
        num_envs: number of environments.
        stack_shape: shape of an observation: [number of frames, height, width].
        n_step: largest number of rewards of a transition.
        discount: gamma.
        perturbation_dim: length of z.
        prior_shape: shape of the prior's coefficients of one observation.
        rule: how transitions are sampled.
    """

    capacity: int
    num_envs: int
    stack_shape: tuple[int, int, int]
    n_step: int
    discount: float
    perturbation_dim: int
    prior_shape: tuple[int, ...]
    rule: sampling.Rule = sampling.Rule()

    def check(self) -> None:
        """Raises ValueError if the settings are invalid."""
        sampling.check(self.capacity, self.rule)
        if not 1 <= self.n_step < 256:
            raise ValueError(f"n_step must be between 1 and 255, got {self.n_step}")
        if self.capacity < self.num_envs:
            raise ValueError(
                f"a replay of {self.num_envs} environments needs at least as many transitions, got "
                f"replay_capacity={self.capacity}"
            )

    @property
    def num_rows(self) -> int:
        """Rows per environment: those of the transitions, and the extra rows of the first and last of them."""
        return -(-self.capacity // self.num_envs) + self.stack_shape[0] + self.n_step

    def arrays(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and dtype of every array; those of rows are [num_rows, num_envs, ...]."""
        rows = (self.num_rows, self.num_envs)
        return {
            "frames": ((*rows, *self.stack_shape[1:]), np.uint8),
            "depths": (rows, np.uint8),
            "actions": (rows, np.int32),
            "perturbations": ((*rows, self.perturbation_dim), np.float32),
            "priors": ((*rows, *self.prior_shape), np.float32),
            "returns": (rows, np.float32),
            "discounts": (rows, np.float32),
            "lengths": (rows, np.uint8),
            "transitions": (rows, np.int64),
            "starts": ((self.capacity,), np.int64),
        }

    def num_bytes(self) -> int:
        """Returns the memory of all arrays without allocating it."""
        sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in self.arrays().values()]
        return sum(sizes) + (4 * self.capacity if self.rule.priority_fraction else 0)


class FrameReplay:
    """The replay. It is used by one thread; another thread gathers prefetched batches."""

    def __init__(self, settings: Settings):
        settings.check()
        self.settings = settings
        # The system allocates arrays of zeros page by page, as they are written.
        self._arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in settings.arrays().items()}
        self._frames, self._depths = self._flat("frames"), self._flat("depths")
        self._actions, self._perturbations = self._flat("actions"), self._flat("perturbations")
        self._priors, self._returns = self._flat("priors"), self._flat("returns")
        self._discounts, self._lengths = self._flat("discounts"), self._flat("lengths")
        self._transitions = self._flat("transitions")  # number of the transition that starts in a row
        self._starts = self._arrays["starts"]
        self._rows = np.zeros(settings.num_envs, np.int64)  # rows written so far
        self._steps = np.zeros(settings.num_envs, np.int64)  # in the current episode
        self._counts = np.zeros(2, np.int64)  # transitions ever added; number of the oldest that is available
        self._newest_priority = np.ones(1, np.float32)
        self._weights = block_sums.BlockSums(settings.capacity) if settings.rule.priority_fraction else None
        self._gatherer: futures.ThreadPoolExecutor | None = None
        self._ahead: collections.deque = collections.deque()

    def _flat(self, name: str) -> np.ndarray:
        """Returns an array of rows with a single axis for row and environment."""
        array = self._arrays[name]
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])

    @property
    def added(self) -> int:
        """Number of transitions ever added."""
        return int(self._counts[0])

    @property
    def size(self) -> int:
        """Number of transitions that can be sampled, |D|."""
        return int(self._counts[0] - self._counts[1])

    def _places(self, env_ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Returns the positions of environments' rows in the flat arrays."""
        return rows % self.settings.num_rows * self.settings.num_envs + env_ids

    def _stack_places(self, places: np.ndarray) -> np.ndarray:
        """Returns the positions [n, frames] of the stacks at `places` [n]; missing frames repeat the first."""
        num_rows, num_envs = self.settings.num_rows, self.settings.num_envs
        back = np.arange(self.settings.stack_shape[0] - 1, -1, -1)
        back = np.minimum(back, self._depths[places, None])
        return (places[:, None] - back * num_envs) % (num_rows * num_envs)

    def _stacks(self, places: np.ndarray) -> np.ndarray:
        return np.take(self._frames, self._stack_places(places), axis=0)

    def add(
        self,
        step: environments_base.VectorStep,
        actions: np.ndarray,
        priors: np.ndarray,
        perturbations: np.ndarray,
    ) -> None:
        """Adds one row for each of some environments, and the transitions that these rows complete.

        Args:
            step: the environments' steps; each environment may occur only once.
            actions: the actions taken, [k]; meaningless if the episode has ended.
            priors: the prior's coefficients of the observations, [k, ...].
            perturbations: z of the transitions that start in these rows, [k, dim].
        """
        self._settle()
        settings, env_ids = self.settings, step.env_ids
        places = self._places(env_ids, self._rows[env_ids])
        depths = self._next_depths(step)
        self._make_room(env_ids)
        self._frames[places] = step.observations[:, -1]
        self._depths[places] = depths
        self._actions[places] = actions
        self._priors[places] = priors
        self._perturbations[places] = perturbations
        self._returns[places] = 0.0
        self._transitions[places] = _NONE

        # Rewards and ends affect the transitions that started up to n rows ago in the same episode (eq. n-step).
        steps = np.where(step.is_first, 0, self._steps[env_ids] + 1)
        for k in range(settings.n_step, 0, -1):
            open_ones = steps >= k
            begun = self._places(env_ids, self._rows[env_ids] - k)
            gained = np.float32(settings.discount ** (k - 1)) * step.rewards.astype(np.float32)
            self._returns[begun[open_ones]] += gained[open_ones]
            complete = open_ones & (step.last | (k == settings.n_step))
            discounts = np.where(step.terminated, 0.0, settings.discount**k)
            self._complete(begun[complete], k, discounts[complete])
        # No transition continues beyond the end: the next row starts an episode.
        self._steps[env_ids] = np.where(step.last, 0, steps)
        self._rows[env_ids] += 1

    def _next_depths(self, step: environments_base.VectorStep) -> np.ndarray:
        """Returns how many previous rows belong to the stacks of the new rows."""
        frames = self.settings.stack_shape[0]
        places = self._places(step.env_ids, self._rows[step.env_ids] - 1)
        depths = np.minimum(self._depths[places].astype(np.int64) + 1, frames - 1)
        for i in np.flatnonzero(step.is_first):
            stack = step.observations[i]
            # After a lost life, the stack continues; after the end of a game, it is filled with the first frame.
            if np.all(stack == stack[-1]):
                depths[i] = 0
            elif not np.array_equal(stack[:-1], self._stacks(places[i : i + 1])[0, 1:]):
                raise ValueError(
                    "an episode must start with a stack that continues the previous one or repeats one frame"
                )
        return depths

    def _make_room(self, env_ids: np.ndarray) -> None:
        """Drops transitions that need a row that is about to be overwritten."""
        needing = self._rows[env_ids] - self.settings.num_rows + self.settings.stack_shape[0] - 1
        numbers = self._transitions[self._places(env_ids, needing)][needing >= 0]
        if len(numbers):
            self._drop_until(int(numbers.max()) + 1)

    def _drop_until(self, number: int) -> None:
        first, last = int(self._counts[1]), max(int(self._counts[1]), number)
        if self._weights is not None and last > first:
            slots = np.arange(first, last) % self.settings.capacity
            self._weights.set(slots, np.zeros(len(slots), np.float32))
        self._counts[1] = last

    def _complete(self, places: np.ndarray, length: int, discounts: np.ndarray) -> None:
        """Adds the transitions that start at these positions."""
        if not len(places):
            return
        numbers = self.added + np.arange(len(places))
        self._drop_until(int(numbers[-1]) + 1 - self.settings.capacity)
        slots = numbers % self.settings.capacity
        self._starts[slots] = places
        self._transitions[places] = numbers
        self._lengths[places] = length
        self._discounts[places] = discounts
        if self._weights is not None:
            self._weights.set(slots, np.full(len(slots), self._newest_priority[0]))
        self._counts[0] += len(places)

    @staticmethod
    def draw(seed: int, number: int, batch_size: int, *part: int) -> np.ndarray:
        """Returns the random bits of sample number `number`; `part` separates replays that share a seed."""
        return np.random.default_rng((seed, number, *part)).integers(0, 2**32, batch_size, dtype=np.uint32)

    def sample(self, bits: np.ndarray) -> tuple[types.Batch, np.ndarray]:
        """Samples a batch with replacement; also returns the numbers of its transitions, in order of addition."""
        return self._gather(self._choose(bits))

    def prefetch(self, bits: np.ndarray) -> None:
        """Chooses a batch as `sample` would now; another thread gathers it for `take`."""
        if self._gatherer is None:
            self._gatherer = futures.ThreadPoolExecutor(max_workers=1)
        self._ahead.append(self._gatherer.submit(self._gather, self._choose(bits)))

    def take(self) -> tuple[types.Batch, np.ndarray]:
        """Returns the oldest prefetched batch."""
        return self._ahead.popleft().result()

    def _settle(self) -> None:
        """Waits until the other thread has finished reading, so that rows may change."""
        futures.wait(self._ahead)

    def _find(self, quantiles: np.ndarray) -> np.ndarray:
        assert self._weights is not None  # only called with a positive `priority_fraction`
        return self._weights.find(quantiles)

    def _choose(self, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the numbers of sampled transitions, and their importance weights if there are any."""
        if not self.size:
            raise ValueError("the replay is empty")
        settings, oldest = self.settings, int(self._counts[1])
        added, held, capacity, rule = self.added, np.int64(self.size), settings.capacity, settings.rule
        slots = sampling.choose_slots(bits, added, held, capacity, self._find, rule, oldest=oldest, xp=np)
        slots = slots.astype(np.int64)
        weights = None
        if rule.importance_beta:
            shares = None if self._weights is None else self._weights.shares(slots)
            weights = sampling.importance_weights(slots, added, held, capacity, shares, rule, xp=np)
        return oldest + (slots - oldest) % capacity, weights

    def _gather(self, chosen: tuple[np.ndarray, np.ndarray | None]) -> tuple[types.Batch, np.ndarray]:
        numbers, weights = chosen
        starts = self._starts[numbers % self.settings.capacity]
        ends = starts + self._lengths[starts].astype(np.int64) * self.settings.num_envs
        ends %= self.settings.num_rows * self.settings.num_envs
        # Compiled functions accept numpy arrays: the casts are for the type checker.
        transitions = types.Transition(
            cast(types.Array, self._stacks(starts)),
            self._actions[starts],
            self._returns[starts],
            self._discounts[starts],
            cast(types.Array, self._stacks(ends)),
            self._perturbations[starts],
        )
        size = cast(types.Array, np.int32(self.size))
        batch = types.Batch(
            transitions, size, self._priors[starts], self._priors[ends], cast(types.Array, weights)
        )
        return batch, numbers

    def update(self, numbers: np.ndarray, losses: np.ndarray) -> None:
        """Sets the priorities of the transitions with these numbers from their losses [n]."""
        if self._weights is None:
            return
        errors, newest = sampling.new_priorities(np.asarray(losses), self._newest_priority[0], xp=np)
        there = numbers >= self._counts[1]  # the others have been dropped since
        self._weights.set(numbers[there] % self.settings.capacity, errors[there])
        self._newest_priority[0] = newest

    def state(self) -> dict[str, np.ndarray]:
        """Returns the state to save, which includes only the used part of arrays."""
        self._settle()
        used = int(min(self._rows.max(), self.settings.num_rows))
        front = {name: array[:used] for name, array in self._arrays.items()}
        front["starts"] = self._starts[: min(self.added, self.settings.capacity)]
        return {**front, **self._counters()}

    def like(self) -> dict[str, Any]:
        """Returns the structure of a checkpoint of `state`; loading it fills this replay. Then call `refresh`."""
        return {**{name: checkpoint.Front(array) for name, array in self._arrays.items()}, **self._counters()}

    def _counters(self) -> dict[str, np.ndarray]:
        counters: dict[str, np.ndarray] = {
            "rows": self._rows,
            "steps": self._steps,
            "counts": self._counts,
            "newest_priority": self._newest_priority,
        }
        if self._weights is not None:
            counters["weights"] = self._weights.weights
        return counters

    def refresh(self) -> None:
        """Computes the sums of priorities after loading."""
        if self._weights is not None:
            self._weights.refresh()

    def close(self) -> None:
        """Stops the other thread."""
        if self._gatherer is not None:
            self._gatherer.shutdown(cancel_futures=True)
