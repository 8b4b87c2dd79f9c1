"""What a measurement leaves, and its pure judges: runs, comparisons, tunings, verdicts."""
