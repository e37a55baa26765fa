"""Results: tables and pictures; imports no jax."""
