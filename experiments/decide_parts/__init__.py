"""Parts of the experiment `decide`: regret of what "auto" takes, where parallel pays off, what giving up costs."""
