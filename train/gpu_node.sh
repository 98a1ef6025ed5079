#!/usr/bin/env bash
# Train on the GPUs of this machine, or of several over ssh, and wait for the end.
#
#   train/gpu_node.sh [options] -- ARGUMENTS of `python -m train`
#
#   --hosts A,B,...   machines, as ssh knows them (default: this one, without ssh)
#   --per node|gpu    a process per machine, which has all its GPUs (default), or a process per GPU
#   --gpus N          with --per gpu: GPUs used on each machine
#   --address HOST    of the first machine, as the others reach it (default: its name in --hosts)
#   --port PORT       of process 0, free on the first machine (default 8482)
#   --folder DIR      the checkout on every machine (default: where it is on this one)
#   --python FILE     on every machine (default python)
#   --dry-run         print the commands and run none
#   --help            this text
#
# Ctrl-C or SIGTERM, and any process that fails, ask all processes to save and end. Ends with the code of the first that
# failed. The run folder must be at one path on all machines.

set -euo pipefail
# shellcheck source=train/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

hosts='' per=node gpus='' address='' port=8482 folder='' python=python
parse 'hosts per gpus address port folder python' '' "$@"
need_number port
need_arguments 'the arguments of python -m train'
case $per in
    node)
        [[ ! $gpus ]] || die "--gpus $gpus: only read with --per gpu; a process per machine takes all its GPUs"
        gpus=1
        ;;
    gpu) need_number gpus ;;
    *) die "--per $per: must be node or gpu" ;;
esac

IFS=, read -r -a machines <<<"${hosts:-127.0.0.1}"
first=${machines[0]#*@}
count=$((${#machines[@]} * gpus))

on() { # MACHINE COMMAND: run a line of shell there, in the background
    local command=(bash -c "$2")
    [[ ! $hosts ]] || command=(ssh -o BatchMode=yes "$1" "$2")
    if [[ $dry_run ]]; then
        printf '%s &\n' "$(quote "${command[@]}")"
    else
        "${command[@]}" &
    fi
}

pid_file() { # ID: where process ID leaves its number on its machine, seen from the home folder
    printf %s ".cache/rove_jax/process-$port-$1.pid"
}

processes=() # by id, those that run
for ((id = 0; id < count; id++)); do
    words=(env)
    if ((count > 1)) || [[ $per == gpu ]]; then
        words+=(JAX_COORDINATOR_ADDRESS="${address:-$first}:$port" JAX_NUM_PROCESSES="$count" JAX_PROCESS_ID="$id")
    fi
    [[ $per == node ]] || words+=(JAX_LOCAL_DEVICE_IDS="$((id % gpus))")
    mode=on
    ((count > 1)) || [[ $per == gpu ]] || mode=off
    words+=("$python" -m train --distributed "$mode" "${arguments[@]}")
    on "${machines[id / gpus]}" "cd && mkdir -p .cache/rove_jax && echo \$\$ >$(pid_file "$id") || exit
cd $(quote "${folder:-$root}") && exec $(quote "${words[@]}")"
    [[ $dry_run ]] || processes+=("$!")
done
if [[ $dry_run ]]; then
    echo wait
    exit
fi

stop() { # ask the processes that run
    local id
    for id in "${!processes[@]}"; do
        on "${machines[id / gpus]}" "cd && pkill -TERM -F $(pid_file "$id") -f -- '-m train'"
    done
}
trap stop TERM INT

code=0
while ((${#processes[@]})); do
    sleep 1 || true # a signal ends it early
    for id in "${!processes[@]}"; do
        ! kill -0 "${processes[id]}" 2>/dev/null || continue
        ended=0
        wait "${processes[id]}" || ended=$?
        unset "processes[id]"
        if ((ended && !code)); then
            code=$ended
            echo "process $id on ${machines[id / gpus]} ended with code $code" >&2
            stop
        fi
    done
done
exit "$code"
