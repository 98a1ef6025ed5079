"""What rotation can and cannot tell apart: scores as functions of distance, their failures, mixers and circuits.

Scores are S(m) = Re sum_n z_n exp(i m w_n): distance m from key to query, z_n the complex product of a pair of the
query with the conjugate of the key's (Du et al., arXiv 2605.15514, section 2.1), before 1/sqrt(H). |z_n| is the
amplitude and arg z_n the phase; every function takes them as z, so no phases are ever assumed. All in float64 NumPy,
but `rope_scores`, which is float32 in JAX.

Scores: `product`, `moments`, `quantization`, `inversion`, `aliasing`, `swap`, `sweep`, `profile`. Models: `capture`,
`failures` and `limits` (all heads of a run), `mixer`, `circuits`, `induction`. Pictures: `picture` and `*_figures`.
"""
