"""Conversion of short pretrained checkpoints of other models into long Longspan models."""
