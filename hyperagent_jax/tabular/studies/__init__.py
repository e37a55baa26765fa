"""The theory as experiments: each has a Config and a function `run` from it to tables."""
