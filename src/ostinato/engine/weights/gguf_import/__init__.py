"""Turn a GGUF file into a Hugging Face style folder: config, weights, tokenizer, chat template.

Called by the sources of `resolve` that find GGUF files. Converts once; running quantised kernels is
not its business.
"""

from ostinato.engine.weights.gguf_import.convert import convert_gguf

__all__ = ["convert_gguf"]
