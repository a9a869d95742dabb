"""Events about cached blocks: records, the manager that collects them, consumers that rebuild the tree."""
