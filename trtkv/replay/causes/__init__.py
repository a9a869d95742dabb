"""Why a prompt token was or was not found."""

from trtkv._moved import names_of_old_module

__getattr__ = names_of_old_module(__name__, "trtkv.replay.causes.causes")
