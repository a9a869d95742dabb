"""Block managers of several systems behind one small interface, for ``tools/bench_block_manager.py``.

Each ``*_system.py`` drives one system; nothing of those systems is part of this project. A system is measured in
a process of its own, by its own interpreter, so these modules import nothing but numpy and that system.
"""
