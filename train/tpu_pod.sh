#!/usr/bin/env bash
# Train on one Cloud TPU slice, all its workers, through gcloud.
#
#   train/tpu_pod.sh create  --name NAME --zone ZONE --type TYPE --version VERSION [--spot] [--queued] [-- OPTIONS]
#   train/tpu_pod.sh install --name NAME --zone ZONE
#   train/tpu_pod.sh each    --name NAME --zone ZONE -- COMMAND
#   train/tpu_pod.sh run     --name NAME --zone ZONE -- ARGUMENTS
#   train/tpu_pod.sh logs    --name NAME --zone ZONE
#   train/tpu_pod.sh stop    --name NAME --zone ZONE
#   train/tpu_pod.sh collect --name NAME --zone ZONE --out DIR [--workers N] [--workdir DIR]
#   train/tpu_pod.sh delete  --name NAME --zone ZONE [--queued]
#
# create    TYPE v5litepod-256 for instance, VERSION that of the TPU software; --queued asks through a queued resource;
#           OPTIONS are more of gcloud's
# install   copy the commit that is checked out here to ~/rove/code of all workers, and install it in ~/rove/venv
# each      run a command in ~/rove of all workers
# run       start `rove-train ARGUMENTS` in ~/rove of all workers and return; output goes to ~/rove/train.log there
# logs      follow the log of worker 0 until its process ends; ends with the exit code of that process
# stop      ask the processes of all workers to save and end (SIGTERM)
# collect   copy the logs of workers 0 to N-1 (default 1: that of worker 0) and the run folder DIR into --out
# delete    the slice with all that is on its disks; --queued if it was created so
#
# All take --project PROJECT, --dry-run (print the commands and run none) and --help.

# shellcheck disable=SC2016 # what is in single quotes is for the shell of another machine
set -euo pipefail
# shellcheck source=train/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

name='' zone='' project='' type='' version='' spot='' queued='' out='' workers=1 workdir=''
action=${1:-}
case $action in
    create) parse 'name zone project type version' 'spot queued' "${@:2}" ;;
    collect) parse 'name zone project out workers workdir' '' "${@:2}" ;;
    delete) parse 'name zone project' 'queued' "${@:2}" ;;
    install | each | run | logs | stop) parse 'name zone project' '' "${@:2}" ;;
    --help) parse '' '' --help ;;
    *) die "'$action': not an action; --help lists them" ;;
esac
need name zone
place=(--zone="$zone")
[[ ! $project ]] || place+=(--project="$project")
case $action in
    each) need_arguments 'a command for the workers' ;;
    run) need_arguments 'the arguments of rove-train' ;;
    create) ;;
    *) ((${#arguments[@]} == 0)) || die "$action takes nothing after --" ;;
esac

on() { # WORKER COMMAND: run a line of shell there
    run gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker="$1" --command="$2"
}

copy() { # WORKER FROM TO [OPTION...]
    run gcloud compute tpus tpu-vm scp "${@:4}" "$2" "$3" "${place[@]}" --worker="$1"
}

case $action in
    create)
        need type version
        if [[ $queued ]]; then
            command=(gcloud compute tpus queued-resources create "$name" --node-id="$name" --runtime-version="$version")
        else
            command=(gcloud compute tpus tpu-vm create "$name" --version="$version")
        fi
        command+=("${place[@]}" --accelerator-type="$type")
        [[ ! $spot ]] || command+=(--spot)
        ((${#arguments[@]} == 0)) || command+=("${arguments[@]}")
        run "${command[@]}"
        ;;
    install)
        [[ -z $(git -C "$root" status --porcelain --untracked-files=no) ]] ||
            die "uncommitted changes in $root: commit them, since the commit that is checked out is what gets installed"
        archive=${TMPDIR:-/tmp}/rove-$name.tar.gz
        run git -C "$root" archive --format=tar.gz --output="$archive" HEAD
        copy all "$archive" "$name:rove.tar.gz"
        # uv brings the Python, since that of the TPU images is older than ours. The run folders in ~/rove stay.
        on all 'set -e
rm -rf rove/code
mkdir -p rove/code
tar -xzf rove.tar.gz -C rove/code
cd rove
ln -sfn code/configs configs
python3 -m pip install --quiet --user uv
[ -e venv ] || python3 -m uv venv --quiet --python 3.12 venv
python3 -m uv pip install --quiet --python venv/bin/python -e "./code[tpu,text]"'
        ;;
    each) on all "cd rove && $(quote "${arguments[@]}")" ;;
    run)
        # A worker learns from the metadata of the slice who it is among the others, where JAX itself would look
        # (jax/_src/clusters/cloud_tpu_cluster.py); an endpoint is "host" or "name:id:host".
        job="trap : TERM; venv/bin/rove-train $(quote --distributed on "${arguments[@]}"); echo \"exit code \$?\""
        on all 'cd rove || exit
if [ -e train.pid ] && pgrep -g "$(cat train.pid)" -f rove-train >/dev/null; then
    echo "error: a run is going on here; stop it first" >&2
    exit 1
fi
metadata() {
    curl -sSf -H Metadata-Flavor:Google "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}
JAX_PROCESS_ID=$(metadata agent-worker-number) && endpoints=$(metadata worker-network-endpoints) || exit
IFS=,
set -- $endpoints
export JAX_PROCESS_ID JAX_NUM_PROCESSES=$# JAX_COORDINATOR_ADDRESS="${1##*:}:8482"
nohup setsid bash -c '"$(quote "$job")"' >train.log 2>&1 </dev/null &
echo $! >train.pid'
        ;;
    logs)
        on 0 'cd rove && tail -n +1 --pid="$(cat train.pid)" -f train.log &&
exit "$(sed -n "\$s/^exit code //p" train.log)"'
        ;;
    stop) on all 'pkill -TERM -g "$(cat rove/train.pid)" -f rove-train' ;;
    collect)
        need out
        need_number workers
        run mkdir -p "$out"
        # One by one: gcloud copies from one worker at a time.
        for ((worker = 0; worker < workers; worker++)); do
            copy "$worker" "$name:rove/train.log" "$out/worker-$worker.log"
        done
        case $workdir in
            '') ;;
            gs://*) run gcloud storage cp --recursive "$workdir" "$out" ;;
            /*) copy 0 "$name:$workdir" "$out" --recurse ;;
            *) copy 0 "$name:rove/$workdir" "$out" --recurse ;;
        esac
        ;;
    delete)
        if [[ $queued ]]; then
            run gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force
        else
            run gcloud compute tpus tpu-vm delete "$name" "${place[@]}"
        fi
        ;;
esac
