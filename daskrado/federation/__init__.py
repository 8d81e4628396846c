"""Sites that may not pool rows: keys, masks, signed bundles, rounds. What is asked of them is decided in ``runs``."""
