"""The scales of returns and of observations, as a run finds them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.networks import torsos


class ReturnScale(NamedTuple):
    """The scale of returns.

    Attributes:
        running: sum of the current episode's rewards so far, with earlier ones discounted; one per environment.
        largest: largest absolute value of `running` so far; 0 before the first reward.
    """

    running: types.Array
    largest: types.Array

    def add(self, reward: types.Array, is_first: types.Array, discount: float) -> "ReturnScale":
        """Updates the scale with a reward."""
        running = jnp.where(is_first, 0.0, discount * self.running) + reward
        return ReturnScale(running, jnp.maximum(self.largest, jnp.max(jnp.abs(running))))

    def normalize(self, batch: types.Batch, smallest_unit: float = 0.0) -> types.Batch:
        """Divides the rewards of a batch by the largest return, or by `smallest_unit` if that is larger."""
        t, unit = batch.transitions, jnp.where(self.largest > 0, self.largest, 1.0)
        if smallest_unit:
            unit = jnp.maximum(self.largest, smallest_unit)
        return batch._replace(transitions=t._replace(r_t=t.r_t / unit))


class ObservationScale(NamedTuple):
    """Mean and spread of observations.

    Attributes:
        count: number of observations so far.
        mean: mean of every entry, [size].
        squares: sum of squared deviations of every entry, [size].
        fitted: count at the network's last update of its statistics.
    """

    count: types.Array  # type: ignore[assignment]  # hides tuple.count
    mean: types.Array
    squares: types.Array
    fitted: types.Array

    def add(self, observations: types.Array) -> "ObservationScale":
        """Updates the statistics with observations [n, ...] (Chan, Golub and LeVeque, 1979)."""
        x = observations.reshape(observations.shape[0], -1).astype(jnp.float32)
        more, total = x.shape[0], self.count + x.shape[0]
        mean = jnp.mean(x, axis=0)
        apart = mean - self.mean
        squares = jnp.sum((x - mean) ** 2, axis=0) + apart**2 * (self.count * more / total)
        return self._replace(count=total, mean=self.mean + apart * (more / total), squares=self.squares + squares)

    def standardize(self, learner: types.LearnerState) -> tuple["ObservationScale", types.LearnerState]:
        """Sets the network's statistics whenever the number of observations has doubled since the last time."""
        variance = self.squares / jnp.maximum(self.count, 1)
        std = jnp.where(variance > 1e-12, jnp.sqrt(variance), 1.0)
        is_due = self.count >= 2 * self.fitted

        def updated(tree: Any) -> Any:
            return jax.tree.map(
                lambda new, old: jnp.where(is_due, new, old), torsos.standardize(tree, self.mean, std), tree
            )

        learner = learner._replace(
            params=updated(learner.params),
            target_params=updated(learner.target_params),
            prior=updated(learner.prior),
        )
        return self._replace(fitted=jnp.where(is_due, self.count, self.fitted)), learner
