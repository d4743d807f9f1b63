"""What is looked at before the checks judge: a checkpoint folder, an endpoint, our own forward pass. Each writes facts into a run."""
