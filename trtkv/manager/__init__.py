"""KVCacheManager and the parts behind it: admission, growth, budgets, offset tables."""
