"""The cloud function that computes gradients, and workloads that need only numpy."""
