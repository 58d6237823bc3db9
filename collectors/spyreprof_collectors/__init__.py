"""What captures: one module per source. Standard library only."""
