"""Network, ways to run it, training and figure of the experiment `resnet`."""
