"""Encoders of mT5 (Xue et al. 2021, https://arxiv.org/abs/2010.11934): T5 in many languages."""

import dataclasses

from longspan.models.conversion.families import t5

FAMILY = dataclasses.replace(t5.FAMILY, model_types=("mt5",), architectures={})
