"""Training: one loop, three tasks (grounder, region network, phrase finder), and the comparison of models."""
