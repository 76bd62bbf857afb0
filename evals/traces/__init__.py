"""What real agents ran, read from their own logs: jobs for replays, commands for predictors."""
