"""The function that computes gradients, and the workloads that need nothing but numpy."""
