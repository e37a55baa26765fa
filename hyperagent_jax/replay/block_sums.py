"""Weights in host memory, with batched updates and sampling in proportion to the weights.

The counterpart of sum_tree.py on the host: sums of blocks of 1,024 weights, so that a draw searches a few hundred
sums and then one block.
"""

import numpy as np

_BLOCK = 1024


class BlockSums:
    """Weights at the positions 0 .. capacity - 1, initially zero.

    Attributes:
        weights: the weights, [blocks, 1024].
        sums: sums of the blocks, [blocks], in double precision so that small weights among many others count.
    """

    def __init__(self, capacity: int):
        self.weights = np.zeros((-(-capacity // _BLOCK), _BLOCK), np.float32)
        self.sums = np.zeros(len(self.weights))

    def set(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights [n] at positions [n]; if a position occurs several times, the largest weight counts."""
        flat = self.weights.reshape(-1)
        flat[positions] = 0.0
        np.maximum.at(flat, positions, np.asarray(weights, np.float32))
        self.refresh(np.unique(np.asarray(positions) // _BLOCK))

    def shares(self, positions: np.ndarray) -> np.ndarray:
        """Returns the weights at positions [n] as fractions of the total."""
        return self.weights.reshape(-1)[positions] / self.sums.sum()

    def refresh(self, blocks: np.ndarray | slice = slice(None)) -> None:
        """Recomputes the sums of blocks, so that rounding errors do not accumulate."""
        self.sums[blocks] = self.weights[blocks].sum(axis=-1, dtype=np.float64)

    def find(self, quantiles: np.ndarray) -> np.ndarray:
        """Returns the positions [n] at quantiles [n], in [0, 1), of the weights, whose sum must be positive.

        Uniform quantiles sample positions in proportion to their weights.
        """
        ends = np.cumsum(self.sums)
        rest = np.asarray(quantiles, np.float64) * ends[-1]
        block = np.minimum(np.searchsorted(ends, rest, side="right"), np.flatnonzero(self.sums)[-1])
        rest -= ends[block] - self.sums[block]
        inside = np.cumsum(self.weights[block], axis=-1, dtype=np.float64)
        # Rounding may push a draw past the last weight of its block: stay among the positive ones.
        last = _BLOCK - 1 - np.argmax(self.weights[block][:, ::-1] > 0, axis=-1)
        place = np.minimum(np.sum(inside <= rest[:, None], axis=-1), last)
        return block * _BLOCK + place
