"""The entry points for AWS Lambda, which are thin wrappers around `seqgc.worker`."""
