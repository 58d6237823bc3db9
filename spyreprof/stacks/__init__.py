"""Files of sampled or traced call stacks: speedscope JSON, collapsed stacks, samples beside trace events."""
