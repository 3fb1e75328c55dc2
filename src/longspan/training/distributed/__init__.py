"""Training one run in several processes: the process group, and sharding over it."""
