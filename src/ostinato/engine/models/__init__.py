"""Decoder models, made from a Hugging Face ``config.json``: one decoder, one short file per family."""

from ostinato.engine.models.build import build_model
from ostinato.engine.models.config import ModelConfig
from ostinato.engine.models.decoder import DecoderModel

__all__ = ["DecoderModel", "ModelConfig", "build_model"]
