"""Which checkpoints of a run stay."""


def best(losses: dict[int, float | None]) -> int | None:
    """The step with the lowest validation loss, of the steps that have one; the earlier of equals."""
    validated = {step: loss for step, loss in losses.items() if loss is not None}
    return min(validated, key=lambda step: (validated[step], step), default=None)


def kept(losses: dict[int, float | None], *, last: int, every: int | None) -> set[int]:
    """Of the steps in `losses` (with their validation losses): the `last` newest, the best, each multiple of `every`.

    Three rules that know nothing of each other: what one of them keeps, no other counts.
    """
    newest, lowest = sorted(losses)[-last:], best(losses)
    return {step for step in losses if step in newest or step == lowest or (every and step % every == 0)}
