#!/usr/bin/env bash
# Submit a training run on the GPUs of one or several nodes to Slurm.
#
#   train/slurm.sh --nodes N --gpus N --time TIME [options] -- ARGUMENTS of `python -m train`
#
#   --nodes N        machines
#   --gpus N         GPUs used on each of them
#   --time TIME      the limit of the job, 24:00:00 for instance; three minutes before it the run is asked to save
#   --per node|gpu   a process per node, which has all its GPUs (default), or a process per GPU
#   --cpus N         CPUs of each process
#   --name NAME      of the job (default rove)
#   --logs DIR       where NAME-JOBID.log goes (default: the folder you are in)
#   --port PORT      of process 0, free on the first node (default 8482)
#   --python FILE    (default python: that of the environment which is active here)
#   --dry-run        print the commands and run none
#   --help           this text
#
# Partition, account and whatever else the cluster wants come from Slurm's own variables: SBATCH_PARTITION,
# SBATCH_ACCOUNT, SBATCH_QOS, ... The checkout, the environment and the run folder must be at one path on all nodes.

# shellcheck disable=SC2016 # what is in single quotes is for the shell of the job
set -euo pipefail
# shellcheck source=train/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

nodes='' gpus='' time='' per=node cpus='' name=rove logs=$PWD port=8482 python=python
parse 'nodes gpus time per cpus name logs port python' '' "$@"
need time
need_number nodes gpus port
[[ ! $cpus ]] || need_number cpus
need_arguments 'the arguments of python -m train'

# Told apart by us, since jax, when it sees Slurm, gives each process one GPU (jax/_src/clusters/cluster.py).
case $per in
    node)
        tasks=1
        devices=$(seq -s , 0 $((gpus - 1)))
        ;;
    gpu)
        tasks=$gpus
        devices='$SLURM_LOCALID'
        ;;
    *) die "--per $per: must be node or gpu" ;;
esac

task='export JAX_NUM_PROCESSES=$SLURM_NTASKS JAX_PROCESS_ID=$SLURM_PROCID JAX_LOCAL_DEVICE_IDS='"$devices
exec $(quote "$python" -m train --distributed on "${arguments[@]}")"
job='set -e
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
set -- $hosts
export JAX_COORDINATOR_ADDRESS="$1:'"$port"'"
exec srun --kill-on-bad-exit=1'"${cpus:+ --cpus-per-task=$cpus} sh -c $(quote "$task")"

[[ $logs == /* ]] || logs=$PWD/$logs
command=(sbatch --job-name="$name" --nodes="$nodes" --ntasks-per-node="$tasks" --gpus-per-node="$gpus" --time="$time")
[[ ! $cpus ]] || command+=(--cpus-per-task="$cpus")
command+=(--chdir="$root" --output="$logs/%x-%j.log" --open-mode=append --requeue --signal=TERM@180 --wrap="$job")
run mkdir -p "$logs"
run "${command[@]}"
