"""The grounding model: phrases and regions in, scores of the chain out; its losses, decoders and checkpoints."""
