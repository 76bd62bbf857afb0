"""The same jobs under each policy over a grid of pools, loads, tools and seeds."""
