"""Networks, data, pretrained weights and figure of the experiment `rnn`."""
