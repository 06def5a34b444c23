"""How far the clocks of nodes are apart, by what follows from collectives alone. Loaded by its path.

Nobody leaves an all-reduce before everybody is in: with when a rank went in and came out by its own clock, its clock is
bounded against every other's, whatever the network's delays are (pipeline/gathered.py computes it).
"""

import time

ROUNDS = 20


def rounds(torch, device):
    """When this rank went in and came out, seconds since 1970, round by round."""
    found = []
    value = torch.zeros(1, device=device)
    for _ in range(ROUNDS):
        entered = time.time()
        torch.distributed.all_reduce(value)
        float(value[0])  # on a GPU the collective is only begun before
        found.append([entered, time.time()])
    return found
