"""Speed, measured as ratios: `python -m benchmarks` runs everything side by side with named references."""
