"""From accelerations to the next state."""
