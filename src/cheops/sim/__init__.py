"""Many sites in one process, under a virtual clock and a hostile network: the production engine, driven hard.

Everything random comes from one seed, so every history can be played again.
"""
