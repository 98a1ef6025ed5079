# shellcheck shell=bash disable=SC2034
# What the launch scripts beside this one share: options, refusals, commands that a dry run prints. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # the checkout
dry_run='' help=''
arguments=() # what comes after --

die() { # MESSAGE
    printf 'error: %s\n' "$1" >&2
    exit 2
}

# The options in the lists VALUED and FLAGS (names, a space between two) become variables of their names, with _ for -,
# which the caller has given their defaults; a flag that is given becomes "yes".
parse() { # VALUED FLAGS WORD...
    local valued=" $1 " flags=" $2 dry-run help " option
    shift 2
    while (($#)); do
        if [[ $1 == -- ]]; then
            shift
            arguments=("$@")
            break
        fi
        option=${1#--}
        if [[ $1 != --?* || $option == *' '* ]]; then
            die "'$1': not an option; --help lists them, and arguments of the trainer come after --"
        elif [[ $flags == *" $option "* ]]; then
            printf -v "${option//-/_}" yes
        elif [[ $valued == *" $option "* ]]; then
            [[ $# -gt 1 && $2 != --* && $2 ]] || die "$1: needs a value"
            printf -v "${option//-/_}" %s "$2"
            shift
        else
            die "$1: unknown option here; --help lists them"
        fi
        shift
    done
    if [[ $help ]]; then # the comment at the head of the script
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        exit 0
    fi
}

need() { # OPTION...: refuse unless each of these was given
    local option
    for option in "$@"; do
        [[ ${!option} ]] || die "--$option is missing; --help lists the options"
    done
}

need_number() { # OPTION...: refuse unless each of these is a whole number above 0
    local option
    need "$@"
    for option in "$@"; do
        [[ ${!option} =~ ^[1-9][0-9]*$ ]] || die "--$option ${!option}: must be a whole number, at least 1"
    done
}

need_arguments() { # WHAT
    ((${#arguments[@]})) || die "nothing after --: give $1"
}

quote() { # WORD...: the words so that a shell reads them back
    local word line='' escaped="'\\''"
    for word in "$@"; do
        [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/$escaped}'"
        line+=" $word"
    done
    printf %s "${line# }"
}

run() { # COMMAND...: run it; in a dry run, print it
    if [[ $dry_run ]]; then
        printf '%s\n' "$(quote "$@")"
    else
        "$@"
    fi
}
