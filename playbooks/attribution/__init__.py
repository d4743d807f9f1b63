"""Mathematics shared by the causes: arrays in, numbers out. Nothing here reads a store or knows a finding."""
