#!/usr/bin/env bash
# The small reproduction: configs/mini_rope.py and configs/mini_rove.py with three seeds each, perplexity of held-out text
# at 1 to 16 times the training length with and without YaRN, and the ratio RoVE / RoPE with its interval over seeds. On
# two CPU cores under two hours. Runs that are finished are kept: the same command goes on after a stop.
#
#   train/reproduce_mini.sh --out DIR [options] [-- ARGUMENTS of each `python -m train`]
#
#   --out DIR       for the runs (rope-0, rove-0, rope-1, ...) and the report (report/)
#   --seeds N       how many seeds, 0 and following (default 3)
#   --python FILE   default python
#   --dry-run       print the commands and run none
#   --help          this text

set -euo pipefail
# shellcheck source=train/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

out='' seeds=3 python=python
parse 'out seeds python' '' "$@"
need out
need_number seeds

out=$(realpath -m -- "$out") # before the next line
cd "$root"
ropes=() roves=()
for ((seed = 0; seed < seeds; seed++)); do
    for variant in rope rove; do
        run "$python" -m train --config "configs/mini_$variant.py" --workdir "$out/$variant-$seed" --seed "$seed" "${arguments[@]}"
    done
    ropes+=("$out/rope-$seed")
    roves+=("$out/rove-$seed")
done
run "$python" -m eval seeds --baseline "${ropes[@]}" --against "${roves[@]}" --out "$out/report"
