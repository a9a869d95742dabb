"""What a cache could have found at best, and at other capacities."""
