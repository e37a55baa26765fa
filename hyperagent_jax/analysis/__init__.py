"""Results as tables, pictures and pages, a package per kind of runs; imports no jax."""
