"""The demonstration: real vLLM workers on this machine's CPUs, a rollout, and what happens to both. `make demo-live`.

system.py    an embedded Ray cluster, and `pearl serve` as a child process that joins it
steering.py  policies that ask for given roles
figures.py   what the running system says of itself
processes.py what a process started, and what is left of it
story.py     the acts
__main__.py  the command
"""
