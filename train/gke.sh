#!/usr/bin/env bash
# Submit a training run on one TPU slice of a GKE cluster, through xpk.
#
#   train/gke.sh --cluster CLUSTER --workload NAME --type TYPE [options] -- ARGUMENTS of `python -m train`
#
#   --cluster CLUSTER    a cluster that xpk has made or adapted
#   --workload NAME      of the job
#   --type TYPE          of the slice, v5litepod-256 for instance
#   --project PROJECT    (default: that of gcloud's config)
#   --zone ZONE          (default: that of gcloud's config)
#   --image IMAGE        an image whose working folder is this checkout, installed; without it xpk makes one out of
#                        --base-image and this folder, and every pod installs it at its start
#   --base-image IMAGE   (default python:3.12)
#   --storage NAME       a shared folder that xpk knows (xpk storage), mounted in every pod
#   --restarts N         how often the job may be started again, after a preemption for instance (default 0)
#   --spot               with node auto-provisioning: spot capacity
#   --dry-run            print the command and do not run it
#   --help               this text

# shellcheck disable=SC2016 # what is in single quotes is for the shell of the pod
set -euo pipefail
# shellcheck source=train/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

cluster='' workload='' type='' project='' zone='' image='' base_image='' storage='' restarts='' spot=''
parse 'cluster workload type project zone image base-image storage restarts' spot "$@"
need cluster workload type
[[ ! $restarts ]] || need_number restarts
[[ ! $image || ! $base_image ]] || die "--base-image $base_image: not read with --image; drop one of the two"
need_arguments 'the arguments of python -m train'

# GKE tells each pod of a slice who it is among the others. exec, so that a SIGTERM reaches Python. No "$(" and no line
# break: the first means something to Kubernetes, the second to the YAML that xpk writes.
install=''
[[ $image ]] || install='python -m pip install --quiet -e ".[tpu,text]" || exit; '
job='IFS=,; set -- ${TPU_WORKER_HOSTNAMES:?}; export JAX_COORDINATOR_ADDRESS="$1:8482" JAX_NUM_PROCESSES="$#" '
job+='JAX_PROCESS_ID="${TPU_WORKER_ID:?}"; '"${install}exec $(quote python -m train --distributed on "${arguments[@]}")"
[[ $job != *$'\n'* ]] || die 'a line break in an argument: xpk cannot take it'

command=(xpk workload create --cluster="$cluster" --workload="$workload" --tpu-type="$type")
[[ ! $project ]] || command+=(--project="$project")
[[ ! $zone ]] || command+=(--zone="$zone")
if [[ $image ]]; then
    command+=(--docker-image="$image")
else
    command+=(--base-docker-image="${base_image:-python:3.12}" --script-dir="$root")
fi
[[ ! $storage ]] || command+=(--storage="$storage")
# 75 is the code of pods that lost another one. xpk itself adds those from 127 on, 143 among them: preempted, and saved.
[[ ! $restarts ]] || command+=(--max-restarts="$restarts" --restart-on-exit-codes=75)
[[ ! $spot ]] || command+=(--spot)
run "${command[@]}" --command="$job"
