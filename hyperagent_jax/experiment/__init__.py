"""Running experiments: one driver, one display, one run directory, one checkpoint format.

An experiment (`base.Experiment`) defines its protocol, how a task runs, its summary line and its picture. `driver`
plans tasks from flags and executes plans, `sweep` plans them from grids, `workers` distributes tasks over
processes, and `run_context` is the interface of a running task to the driver.
"""
