"""Jobs that measure a lake rather than learn from it: counting queries, margin distributions, local reports."""
