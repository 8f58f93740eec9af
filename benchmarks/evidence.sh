#!/usr/bin/env bash
# Runs the measurements that leave evidence on a GPU, by stages that take a few minutes each.
#
#   OUT=results bash benchmarks/evidence.sh decode memory     # some stages
#   OUT=results bash benchmarks/evidence.sh                   # all of them
#
# PYTHON names an interpreter with torch (python3 by default); nothing needs to be installed. Each stage writes JSON files
# with the usual names, and its log beside them; a stage that fails does not keep the others from running.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${PYTHON:-python3} out=${OUT:?name a folder for the results}
small=benchmarks/models/llama-3.2-1b large=benchmarks/models/llama-3.1-8b
other=benchmarks/models/qwen1.5-1.8b # a key head for each query head, biases, an untied head
mkdir -p "$out"

ostinato() { "$python" -m ostinato "$@"; }
bench() { ostinato bench "$@" --load-format dummy --json "$out/"; }

tests() { make test-gpu GPU_PYTHON="$python"; }
decode() { bench decode --model $small --modes auto,none; }
decode_large() { bench decode --model $large --modes auto; }
prefill() { bench prefill --model $small --modes auto --tokens 16,200,512,900,2048,4096; } # of published tables, and between
prefill_large() { bench prefill --model $large --modes auto --tokens 200,900,4096; }
segments() { bench segments --model $small && bench segments --model $large --segments 1; }
checks() { bench checks --model $small; }
dispatch() { bench dispatch --model $small; }
surface() { bench surface --model $small; }
surface_large() { bench surface --model $large --repeats 3; }
serve() { # TRACE=file.csv replays its first TRACE_REQUESTS (2000) too, TRACE_SPEED (1) times as fast
    bench serve --model $small --modes auto,none --rates 50,200 --num-requests 400 --output-tokens 64 || return
    [ -z "${TRACE:-}" ] || bench serve --model $small --modes auto,none --trace "$TRACE" \
        --trace-speed "${TRACE_SPEED:-1}" --num-requests "${TRACE_REQUESTS:-2000}"
}
background() { bench background --model $small; }
peers() { # other systems of this installation, in the run that measures ours
    bench decode --model $small --modes auto --batches 1,29 --no-profile --repeats 1 \
        --peer transformers-eager --peer transformers-static --peer transformers-continuous
}
tune() { # linear layers by default kernels, and by those measured here (minutes), in a cache that nobody else reads
    local cache decode=(ostinato bench decode --model $small --load-format dummy --modes auto --no-profile)
    cache=$(mktemp -d) && echo '{"tune_linears": true}' >"$cache/tuned.json" &&
        OSTINATO_CACHE=$cache "${decode[@]}" --json "$out/decode_default_llama-3.2-1b.json" &&
        OSTINATO_CACHE=$cache "${decode[@]}" --config "$cache/tuned.json" --json "$out/decode_tuned_llama-3.2-1b.json"
}
executables() { bench executables --model $small; }
startup() ( # a start before each fills the caches: byte code, as an installation by pip leaves it, and kernels
    caches
    for capture in eager background; do
        ostinato bench startup --model $small --modes auto --load-format dummy --capture $capture --repeats 1 &&
            bench startup --model $small --modes auto --capture $capture --repeats 5 || exit 1
    done
)
startup_files() ( # weights from files, which are in the page cache since they were written here
    caches
    folder=$(mktemp -d) || exit 1
    trap 'rm -rf "$folder"' EXIT
    model=$folder/llama-3.2-1b
    "$python" benchmarks/random_checkpoint.py --model $small --out "$model" --shards 4 &&
        ostinato bench startup --model "$model" --modes auto --repeats 1 || exit 1
    for capture in eager background; do
        ostinato bench startup --model "$model" --modes auto --capture $capture --repeats 5 \
            --json "$out/startup_files_llama-3.2-1b_$capture.json" || exit 1
    done
)
startup_large() (
    caches
    ostinato bench startup --model $large --modes auto --load-format dummy --repeats 1 &&
        bench startup --model $large --modes auto
)
caches() {
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$(mktemp -d)}
}
memory() { # three shapes: predicted, and measured on a whole engine
    for model in $small $large $other; do
        ostinato memory --model $model --load-format dummy --measure --json >"$out/memory_${model##*/}.json" || return 1
    done
}
qualify() { ostinato qualify --model $small --load-format dummy --json >"$out/qualify_llama-3.2-1b.json"; }
explain() { # what every way to run a step costs, and what is chosen; measured once
    local file="$out/explain_${small##*/}" partitions=breakable,fx,inductor
    ask() { ostinato explain --model $small --load-format dummy --costs "$out/costs.json" --partitions $partitions --json "$@"; }
    ask --decode 29 --measure >"${file}_decode-29.json" &&
        ask --prefill 173 >"${file}_prefill-173.json" &&
        ask --mixed 12+200 >"${file}_mixed-12+200.json"
}
growth() { "$python" benchmarks/growth.py --model $small --json "$out/"; }
host() { "$python" benchmarks/host_step.py --json "$out/"; }
host_parts() { "$python" benchmarks/host_parts.py --model $small --json "$out/"; }

all=(tests decode prefill prefill_large memory startup startup_files qualify segments checks dispatch executables decode_large startup_large explain growth host host_parts tune surface surface_large serve background peers)
stages=("$@") failed=()
[ ${#stages[@]} -eq 0 ] && stages=("${all[@]}")
for stage in "${stages[@]}"; do
    if ! declare -F "$stage" >/dev/null || [[ ! " ${all[*]} " == *" $stage "* ]]; then
        echo "no stage $stage; there are: ${all[*]}" >&2
        exit 2
    fi
done
for stage in "${stages[@]}"; do
    began=$SECONDS
    "$stage" > >(tee "$out/$stage.log") 2>&1 || failed+=("$stage")
    echo "== $stage: $((SECONDS - began)) s"
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
