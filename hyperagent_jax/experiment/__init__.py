"""Running experiments: one driver, one display, one run directory, one checkpoint format.

An experiment says what is its own (`base.Experiment`): its protocol, how one task runs, its summary line and its
picture. `driver` plans tasks from flags and executes plans, `sweep` plans them from grids, `workers` spreads tasks
over processes, and `run_context` is what a running task talks to.
"""
