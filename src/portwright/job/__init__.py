"""What every run needs, without torch or tensorflow: params, schedules, run folder, signals, logs, progress."""
