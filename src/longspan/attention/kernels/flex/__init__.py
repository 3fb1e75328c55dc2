"""FlexAttention under masks: calls, the tiles that they visit, and masks that layers share."""
