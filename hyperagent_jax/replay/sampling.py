"""Which items of a replay are drawn, and how much each counts; the same on device and on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from hyperagent_jax import checks

# The priority of new items falls by this factor per update of priorities, to a half in 7,000 of them.
_FORGETTING = 0.9999
# Added to every error, so that every priority is positive.
_SMALLEST_ERROR = 1e-6


class Rule(NamedTuple):
    """What a sample consists of: recent items, items drawn by priority, and for the rest uniform ones.

    Attributes:
        recent_fraction: share of every sample whose ages are log-uniform: as many items of age 10 to 100 as of
            age 100 to 1,000 and so on.
        priority_fraction: share of every sample that is drawn in proportion to the items' last errors, the
            roots of their losses.
        importance_beta: exponent beta of the weights that losses get in return, see `importance_weights`. With 0
            there are none: where outcomes are random, the average loss of such a sample is then biased.
        importance_beta_steps: beta grows linearly in the items added and is 1 from this many on; with 0 it stays.
    """

    recent_fraction: float = 0.0
    priority_fraction: float = 0.0
    importance_beta: float = 0.0
    importance_beta_steps: int = 0

    def parts(self, batch_size: int) -> tuple[int, int]:
        """Returns how many items of a sample are recent, and how many are drawn by priority."""
        num_recent = round(self.recent_fraction * batch_size)
        return num_recent, min(round(self.priority_fraction * batch_size), batch_size - num_recent)


def check(capacity: int, rule: Rule) -> None:
    """Raises ValueError unless a replay can have these settings."""
    checks.whole_number("the replay's capacity", capacity, 1)
    recent, priority = rule.recent_fraction, rule.priority_fraction
    if not (recent >= 0 and priority >= 0 and recent + priority <= 1):
        raise ValueError(
            "recent_fraction and priority_fraction must be at least 0 and at most 1 together, got "
            f"{recent} and {priority}"
        )
    checks.real_number("importance_beta", rule.importance_beta, 0, 1)
    checks.whole_number("importance_beta_steps", rule.importance_beta_steps, 0)
    if rule.importance_beta and not recent and not priority:
        raise ValueError(
            "importance_beta weighs what is not drawn uniformly: use it with priority_fraction or recent_fraction"
        )
    if rule.importance_beta_steps and not rule.importance_beta:
        raise ValueError("importance_beta_steps is for a positive importance_beta, got importance_beta=0")


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
    """Chooses the slots of one sample: recent ones, then some by priority, the rest uniformly.

    Args:
        bits: random bits, [batch_size].
        added: number of items ever added.
        held: number of items that may be drawn, the latest; at least 1.
        capacity: number of slots; item i is in slot i % capacity.
        find: maps quantiles of the priorities to slots.
        rule: which items are drawn.
        oldest: number of the oldest item that may be drawn; None when it is `added - held`.
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
        # One draw from each of as many equal parts of the distribution.
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

    P is the probability with which an item is at a random place of the sample: recent, prioritised and uniform
    places have their own, and P is their mean. With beta = 1 the weighted mean of a sample is, up to the
    division, an unbiased estimate of the mean over all items.

    Args:
        slots: slots of the sample, [batch_size].
        added: number of items ever added, at the time of the sample, like all that follow.
        held: number of items that could be drawn.
        capacity: number of slots.
        shares: priorities at these slots as shares of the sum of all, [batch_size]; None without priorities.
        rule: which items are drawn.
        xp: jax.numpy, or numpy on the host.

    Returns:
        Weights [batch_size].
    """
    batch_size = slots.shape[0]
    num_recent, num_prioritized = rule.parts(batch_size)
    # Of uniform draws, held times the probability is 1.
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
    """Returns the priorities of items with these losses [n], and the priority of items added from now on."""
    errors = xp.sqrt(xp.maximum(losses, 0.0)) + _SMALLEST_ERROR
    return errors, xp.maximum(_FORGETTING * newest, xp.max(errors))
