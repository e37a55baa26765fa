"""Lists, redraws and runs the figures of the paper.

Examples: python experiments/paper.py list
          python experiments/paper.py sigma          # redraws it, and docs/paper.md, from the rows in results/
          python experiments/paper.py sigma --run    # makes missing rows first; takes the flags of sweep.py
          python experiments/paper.py all
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import cli

try:
    from hyperagent_jax.paper import main
except ImportError as error:
    cli.fail(f"{error.name} is not installed, which draws the figures: pip install 'hyperagent_jax[sweep]'")

if __name__ == "__main__":
    main.define_flags()
    cli.run(main.main, main.COMMANDS)
