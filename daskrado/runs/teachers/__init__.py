"""Jobs of kind ``teachers``: private answers to classification queries, and a student that can be published."""
