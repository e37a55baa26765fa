"""The paper's theory: finite MDPs, HyperAgent in closed form, and the agents it is compared with."""
