"""Two reports side by side: which conditions match, what changed, where, and whether that is more than noise."""
