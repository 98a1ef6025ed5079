"""DCLM's CORE: 22 few-shot tasks, scored by likelihood, in the forms of nanochat and of llm-foundry."""
