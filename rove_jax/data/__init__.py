"""Text to training batches: `sources` -> `tokenizers` -> `build` (records on disk) -> `prepared` -> `pipeline`.

`prepare` opens what a recipe asks for, and builds it if it is small. Building is cut into pieces (`shards`) that this
process does, or others of this machine (`workers`), or `beam`. `mixture` reads several prepared datasets as one.
Nothing is imported here, because grain alone takes half a second and a tokenizer does not need it.
"""
