"""A small continuous-batching LLM engine on plain torch; start reading at `core.py`."""
