"""The paper's theory: finite MDPs, HyperAgent in closed form, and baseline agents."""
