"""What concludes: pure functions from a recording's tables to findings."""
