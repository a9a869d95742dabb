"""What a cache could have found at best, and at other capacities."""

from trtkv._moved import names_of_old_module

__getattr__ = names_of_old_module(__name__, "trtkv.replay.bounds.bounds")
