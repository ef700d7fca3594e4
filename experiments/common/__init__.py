"""What the experiments share: timing, tables, result files, data and plots."""
