"""DeepSeek-V3 and R1, and the Kimi-K2 text models with its architecture."""
