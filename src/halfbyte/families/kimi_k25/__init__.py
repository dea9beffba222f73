"""Kimi-K2.5, K2.6 and K2.7-Code: a DeepSeek-V3 text model with MoonViT."""
