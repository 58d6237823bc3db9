"""The recording: the only hand-over between what captures and what concludes."""
