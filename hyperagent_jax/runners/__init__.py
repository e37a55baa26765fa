"""Loops that run an agent in an environment."""
