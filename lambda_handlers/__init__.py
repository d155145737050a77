"""AWS Lambda entry points: thin wrappers around `seqgc.worker`."""
