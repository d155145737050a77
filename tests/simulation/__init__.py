"""The simulator: whole runs with every fault that a seed asks for, in one thread and virtual time.

Real are `seqgc.training.train` and `resume` with all they use: loop, policy, schemes, gatherer,
workload, session, checkpoints, journal, lease. Replaced are the clock, the threads, and the system
calls of `seqgc._durable` (`disk`). Workers are those of `backend`; or functions (`crew`), of which
all is real but the network and the service (`functions`). A seed says which faults happen where
(`faults`). What must hold is checked after every event and at the end
(`world`, `runs`). ``python -m tests.simulation --seed N`` shows one seed; ``make soak`` runs 10**5.
"""
