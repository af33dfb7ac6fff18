"""servetune: a throughput laboratory for LLM serving engines."""

__version__ = "0.1.0"
