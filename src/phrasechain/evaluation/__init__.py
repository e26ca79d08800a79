"""How good predictions are, and what a dataset and its regions allow."""
