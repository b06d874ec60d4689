"""Find which nodes a quantized ONNX model loses accuracy in, and what to change about it."""

__version__ = "0.1.0"
