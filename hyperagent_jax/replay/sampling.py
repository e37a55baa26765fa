"""Sampling rules and importance weights of replays, for device and host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from hyperagent_jax import checks

# The priority of new items decays by this factor per update of priorities, to one half in 7,000 updates.
_FORGETTING = 0.9999
# Added to every error, so that priorities are positive.
_SMALLEST_ERROR = 1e-6


class Rule(NamedTuple):
    """The parts of a sample: recent items, items sampled by priority, and uniformly sampled items.

    Attributes:
        recent_fraction: fraction of every sample with log-uniform ages: as many items of age 10 to 100 as of age
            100 to 1,000 and so on.
        priority_fraction: fraction of every sample that is drawn in proportion to the items' last errors, the
            square roots of their losses.
        importance_beta: exponent beta of the importance weights of losses, see `importance_weights`. With 0 there
            are none, so that average losses of non-uniform samples are biased where outcomes are random.
        importance_beta_steps: beta grows linearly with the items added, to 1 at this many; 0 for a constant beta.
    """

    recent_fraction: float = 0.0
    priority_fraction: float = 0.0
    importance_beta: float = 0.0
    importance_beta_steps: int = 0

    def parts(self, batch_size: int) -> tuple[int, int]:
        """Returns the numbers of recent items and of items sampled by priority in a sample."""
        num_recent = round(self.recent_fraction * batch_size)
        return num_recent, min(round(self.priority_fraction * batch_size), batch_size - num_recent)


def check(capacity: int, rule: Rule) -> None:
    """Raises ValueError if the settings of a replay are invalid."""
    checks.whole_number("the replay's capacity", capacity, 1)
    recent, priority = rule.recent_fraction, rule.priority_fraction
    if not (recent >= 0 and priority >= 0 and recent + priority <= 1):
        raise ValueError(
            "recent_fraction and priority_fraction must be at least 0 and their sum at most 1, got "
            f"{recent} and {priority}"
        )
    checks.real_number("importance_beta", rule.importance_beta, 0, 1)
    checks.whole_number("importance_beta_steps", rule.importance_beta_steps, 0)
    if rule.importance_beta and not recent and not priority:
        raise ValueError(
            "importance_beta corrects non-uniform sampling: use it with priority_fraction or recent_fraction"
        )
    if rule.importance_beta_steps and not rule.importance_beta:
        raise ValueError("importance_beta_steps needs a positive importance_beta, got importance_beta=0")


def choose_slots(
    bits: Any,
    added: Any,
    held: Any,
    capacity: int,
    find: Callable[[Any], Any],
    rule: Rule,
    *,
    oldest: Any = None,
    xp: Any = jnp,
) -> Any:
    """Chooses the slots of one sample: first recent ones, then ones by priority, then uniform ones.

    Args:
        bits: random bits, [batch_size].
        added: number of items ever added.
        held: number of items that may be sampled, the latest ones; at least 1.
        capacity: number of slots; item i is in slot i % capacity.
        find: maps quantiles of the priorities to slots.
        rule: how items are sampled.
        oldest: number of the oldest item that may be sampled; None for `added - held`.
        xp: jax.numpy, or numpy on the host.

    Returns:
        Slots [batch_size].
    """
    num_recent, num_prioritized = rule.parts(bits.shape[0])
    in_unit_interval = (bits >> 8).astype(xp.float32) * 2.0**-24
    parts = []
    if num_recent:
        # Age a (the newest has 1) with probability log((a + 1) / a) / log(held + 1).
        logarithm = in_unit_interval[:num_recent] * xp.log1p(held.astype(xp.float32))
        age = xp.minimum(xp.exp(logarithm).astype(xp.int32), held)
        parts.append((added - age) % capacity)
    if num_prioritized:
        # Stratified: one draw from each of equally likely parts of the distribution.
        offsets = in_unit_interval[num_recent : num_recent + num_prioritized]
        quantiles = (xp.arange(num_prioritized) + offsets) / num_prioritized
        found = find(quantiles)
        parts.append(xp.minimum(found, held - 1) if oldest is None else found)
    rest = bits[num_recent + num_prioritized :]
    uniform = (rest % held.astype(xp.uint32)).astype(xp.int32)
    parts.append(uniform if oldest is None else (oldest + uniform) % capacity)
    return xp.concatenate(parts)


def importance_weights(
    slots: Any, added: Any, held: Any, capacity: int, shares: Any, rule: Rule, xp: Any = jnp
) -> Any:
    """Calculates (1 / (held P))^beta, divided by the largest of the sample (https://arxiv.org/abs/1511.05952).

    P is the probability that an item is at a random position of the sample, the mean of the probabilities at
    recent, prioritised and uniform positions. With beta = 1, the weighted mean of a sample is an unbiased estimate
    of the mean over all items, up to the division.

    Args:
        slots: slots of the sample, [batch_size].
        added: number of items ever added at the time of the sample, as for the following arguments.
        held: number of items that could be sampled.
        capacity: number of slots.
        shares: priorities at these slots as fractions of the total, [batch_size]; None without priorities.
        rule: how items are sampled.
        xp: jax.numpy, or numpy on the host.

    Returns:
        Weights [batch_size].
    """
    batch_size = slots.shape[0]
    num_recent, num_prioritized = rule.parts(batch_size)
    # For uniform sampling, held times the probability is 1.
    relative = (batch_size - num_recent - num_prioritized) / batch_size
    if num_recent:
        age = (added - 1 - slots) % capacity + 1
        of_age = xp.log1p(1.0 / age) / xp.log1p(1.0 * held)
        relative += num_recent / batch_size * held * of_age
    if num_prioritized:
        relative += num_prioritized / batch_size * held * shares
    beta = rule.importance_beta
    if rule.importance_beta_steps:
        beta += (1.0 - beta) * xp.minimum(added / rule.importance_beta_steps, 1.0)
    weights = relative**-beta
    return (weights / xp.max(weights)).astype(xp.float32)


def new_priorities(losses: Any, newest: Any, xp: Any = jnp) -> tuple[Any, Any]:
    """Returns the priorities of items with these losses [n], and the priority of items added later."""
    errors = xp.sqrt(xp.maximum(losses, 0.0)) + _SMALLEST_ERROR
    return errors, xp.maximum(_FORGETTING * newest, xp.max(errors))
