"""Temporal-difference losses of HyperAgent (https://arxiv.org/abs/2402.10228) and of related systems.

Three layers, each usable without the ones below it:

- arrays: `optimistic_td_error`, `exact_td_loss`, `sampled_td_loss`, `masked_td_loss`: functions of arrays for
  one transition, in the form of rlax.
- td, categorical, terms: `make_td_loss`, `make_categorical_loss` and the `with_*` functions: a `Loss` of one
  transition for an `EpistemicNetwork`.
- batch: `batch_loss` and `value_and_grad`: a `Loss` over a batch, with regulariser and gradient penalty.
"""

from hyperagent_jax.losses.arrays import Scalar as Scalar
from hyperagent_jax.losses.arrays import exact_td_loss as exact_td_loss
from hyperagent_jax.losses.arrays import masked_td_loss as masked_td_loss
from hyperagent_jax.losses.arrays import optimistic_td_error as optimistic_td_error
from hyperagent_jax.losses.arrays import sampled_td_loss as sampled_td_loss
from hyperagent_jax.losses.base import ApplyFn as ApplyFn
from hyperagent_jax.losses.base import ApplyWithValueFn as ApplyWithValueFn
from hyperagent_jax.losses.base import DrawFn as DrawFn
from hyperagent_jax.losses.base import Loss as Loss
from hyperagent_jax.losses.base import LossNoise as LossNoise
from hyperagent_jax.losses.base import RegularizerFn as RegularizerFn
from hyperagent_jax.losses.batch import batch_loss as batch_loss
from hyperagent_jax.losses.batch import check_batch as check_batch
from hyperagent_jax.losses.batch import propagate_nan as propagate_nan
from hyperagent_jax.losses.batch import value_and_grad as value_and_grad
from hyperagent_jax.losses.batch import with_prior_beliefs as with_prior_beliefs
from hyperagent_jax.losses.categorical import categorical_loss as categorical_loss
from hyperagent_jax.losses.categorical import make_categorical_loss as make_categorical_loss
from hyperagent_jax.losses.self_prediction import self_prediction_loss as self_prediction_loss
from hyperagent_jax.losses.self_prediction import with_augmentation as with_augmentation
from hyperagent_jax.losses.self_prediction import with_self_prediction as with_self_prediction
from hyperagent_jax.losses.td import LOSSES as LOSSES
from hyperagent_jax.losses.td import TARGET_INDICES as TARGET_INDICES
from hyperagent_jax.losses.td import draw_noise as draw_noise
from hyperagent_jax.losses.td import make_td_loss as make_td_loss
from hyperagent_jax.losses.td import td_loss as td_loss
from hyperagent_jax.losses.td import td_loss_with_value as td_loss_with_value
from hyperagent_jax.losses.terms import with_gradient_penalty as with_gradient_penalty
from hyperagent_jax.losses.terms import with_head_regularization as with_head_regularization
from hyperagent_jax.losses.terms import with_prior_regularization as with_prior_regularization
