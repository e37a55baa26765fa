"""Training loops that run an agent in an environment."""
