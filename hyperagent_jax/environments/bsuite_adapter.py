"""bsuite's environments; the only file that imports bsuite."""

import dm_env

from hyperagent_jax import errors


def make_deep_sea(size: int, *, deterministic: bool, seed: int, mapping_seed: int) -> dm_env.Environment:
    """bsuite's own Python DeepSea."""
    try:
        from bsuite.environments import deep_sea
    except ImportError as error:
        raise errors.UserError("bsuite is not installed: pip install 'hyperagent_jax[bsuite]'") from error
    return deep_sea.DeepSea(size, deterministic=deterministic, seed=seed, mapping_seed=mapping_seed)
