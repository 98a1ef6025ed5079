"""One direction of Muon in float64 NumPy, as its author publishes it (Keller Jordan, "Muon", 2024)."""

import numpy as np

A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
    """[m, n] with its singular values driven towards 1 by five steps of X <- a X + b (X X^T) X + c (X X^T)^2 X."""
    x = matrix / (np.sqrt((matrix**2).sum()) + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = A * x + B * gram @ x + C * gram @ gram @ x
    return x


def directions(gradients: list[np.ndarray], momentum: float) -> list[np.ndarray]:
    """What to subtract, times the rate, for each of the gradients [m, n] of one matrix after another."""
    average, found = np.zeros(gradients[0].shape), []
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.astype(np.float64)
        average = momentum * average + (1 - momentum) * g
        # Averages corrected for their start, the momentum's one step ahead.
        ahead = momentum * average / (1 - momentum ** (t + 1)) + (1 - momentum) * g / (1 - momentum**t)
        found.append(0.2 * np.sqrt(max(g.shape)) * orthogonalised(ahead))
    return found
