"""Running on a cluster: sites, scripts, containers, the queue, what a job is doing. Never imports torch or tensorflow."""
