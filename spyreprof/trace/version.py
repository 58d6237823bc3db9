"""The version of a trace's columns, apart so that looking for stored ones imports nothing."""

# Raised whenever the same trace gives other columns.
COLUMNS_VERSION = 1
