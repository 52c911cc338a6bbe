"""What a method costs, and where the time of a run went."""
