"""From a model's config.json and bytes of memory to windows, pools and blocks."""
