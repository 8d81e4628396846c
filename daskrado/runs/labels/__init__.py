"""Jobs in which only the labels are secret, weak, or missing: features are public."""
