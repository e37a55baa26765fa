"""Adam with the settings of the released code."""

from typing import NamedTuple

import optax


class Adam(NamedTuple):
    """Adam with clipping of the gradient's global norm; defaults from the released code.

    Attributes:
        learning_rate: learning rate.
        b1: decay rate of the first moment.
        b2: decay rate of the second moment.
        eps: epsilon.
        max_grad_norm: the gradient is clipped to this global norm.
    """

    learning_rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1.5e-4
    max_grad_norm: float = 10.0

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optax transformation."""
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.adam(self.learning_rate, self.b1, self.b2, self.eps),
        )
