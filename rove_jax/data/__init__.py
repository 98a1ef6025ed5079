"""Text to training batches: `sources` -> `tokenizers` -> `prepare` (records on disk) -> `prepared` -> `pipeline`.

Nothing is imported here, because grain alone takes half a second and a tokenizer does not need it.
"""
