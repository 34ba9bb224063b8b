#!/bin/bash
# Builds the probes and runs the named steps (all where none is named), each under its own time limit.
#
#     bench/gpu/probes/all.sh OUT [STEP...]
#
# Writes OUT/facts.jsonl: a line of JSON for each fact, and one for the end of each step. BUILD (default /tmp/probes) is kept. FRONTEND is the
# folder of cudnn_frontend.h; HEADERS a folder of cuDNN's and NCCL's headers, where neither the toolkit nor Python's nvidia packages have them.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=${ROOT:-$(cd "$here/../../.." && pwd)}
out=$1
shift
build=${BUILD:-/tmp/probes}
mkdir -p "$out" "$build"
facts=$out/facts.jsonl
cd "$build" || exit 1

cuda=${CUDA_HOME:-/usr/local/cuda}
packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
include="-isystem $cuda/include" libraries="-L$cuda/lib64 -L$cuda/lib -Wl,-rpath,$cuda/lib64"
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
for folder in "$packages/cudnn" "$packages/nccl" "$packages/cu13" "$packages/cublas" "$packages/cuda_nvrtc"; do
  [ -d "$folder/include" ] && include+=" -isystem $folder/include"
  [ -d "$folder/lib" ] && libraries+=" -L$folder/lib -Wl,-rpath,$folder/lib" && LD_LIBRARY_PATH+=":$folder/lib"
done
include+=" ${HEADERS:+-isystem $HEADERS} ${FRONTEND:+-isystem $FRONTEND}"
[ -e "$cuda/lib64/libcudart_static.a" ] && cudart=-lcudart_static || cudart=-l:libcudart.so.13
runtime="$cudart -lpthread -ldl -lrt"
kernel="nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -lineinfo -I$here -I$root $include"
host="g++ -std=c++20 -O2 -I$here -I$root $include"
cpu="$host -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi"

# make NAME COMMAND: builds NAME once, in the background.
make() {
  [ -x "$1" ] && return
  ( eval "$2" > "$1.build" 2>&1 || { echo "{\"step\": \"build $1\", \"rc\": 1}" >> "$facts"; echo "$1 does not build:"; grep -m 8 -E "error|undefined|cannot" "$1.build"; } ) &
}
build_all() {
  make properties "$host $here/properties.cpp -o properties $libraries -l:libcudnn.so.9 -l:libnccl.so.2 -l:libcublasLt.so.13 $runtime"
  make attention "$host $here/attention.cpp -o attention $libraries -l:libcudnn.so.9 $runtime"
  make contract "$kernel -c $here/runtime_contract.cu -o contract.o && $host -c $here/pipeline.cpp -o pipeline.o && g++ contract.o pipeline.o -o contract $libraries $runtime"
  make sticky "$kernel -c $here/sticky_errors.cu -o sticky.o && g++ sticky.o -o sticky $libraries $runtime"
  make latencies "$kernel -c $here/latencies.cu -o latencies.o && g++ latencies.o -o latencies $libraries $runtime"
  make transfers "$kernel -c $here/transfers.cu -o transfers.o && g++ transfers.o -o transfers $libraries $runtime"
  make bandwidth "$kernel -c $here/bandwidth.cu -o bandwidth.o && g++ bandwidth.o -o bandwidth $libraries $runtime"
  make gemm "$kernel -c $here/gemm_kernels.cu -o gemm_kernels.o && $host -c $here/gemm.cpp -o gemm.o && g++ gemm.o gemm_kernels.o -o gemm $libraries -l:libcublasLt.so.13 $runtime"
  make mma "$kernel -c $here/mma_rounding.cu -o mma.o && g++ mma.o -o mma $libraries $runtime"
  make step "$kernel -c $here/step_kernels.cu -o step_kernels.o && $host -c $here/step.cpp -o step.o && $kernel -c $here/gemm_kernels.cu -o step_gemm_kernels.o && g++ step.o step_kernels.o step_gemm_kernels.o -o step $libraries -l:libcudnn.so.9 -l:libcublasLt.so.13 $runtime"
  make two_processes "$kernel -c $here/two_processes.cu -o two_processes.o && g++ two_processes.o -o two_processes $libraries $runtime"
  make nccl "$host $here/nccl_one_rank.cpp -o nccl $libraries -l:libnccl.so.2 $runtime"
  make bits "$cpu -c $here/bits_cpu.cpp -o bits_cpu.o && $cpu -c $root/kernels/cpu/optimizer.cpp -o optimizer.o && $cpu -c $root/kernels/cpu/square_sums.cpp -o square_sums.o &&
    $kernel -fmad=false -c $here/bits.cu -o bits.o && g++ bits.o bits_cpu.o optimizer.o square_sums.o -o bits $libraries $runtime &&
    $kernel -c $here/bits.cu -o bits_fused.o && g++ bits_fused.o bits_cpu.o optimizer.o square_sums.o -o bits_fused $libraries $runtime"
  make planted_cpu "$host -fno-strict-aliasing -ffp-contract=off $here/planted_cpu.cpp -o planted_cpu"
  for bug in 0 1 2 3 4 5 6 7; do
    make "planted_$bug" "$kernel -DBUG=$bug -c $here/planted.cu -o planted_$bug.o && g++ planted_$bug.o -o planted_$bug $libraries $runtime"
  done
  wait
}

# step NAME SECONDS COMMAND...: appends what the command prints.
step() {
  local name=$1 limit=$2 begin=$SECONDS rc
  shift 2
  timeout -k 5 "$limit" "$@" > "$build/step.out" 2> "$build/step.err"
  rc=$?
  grep '^{' "$build/step.out" >> "$facts"
  [ -s "$build/step.err" ] && { echo "--- $name"; cat "$build/step.err"; } >> "$out/errors.log"
  echo "{\"step\": \"$name\", \"rc\": $rc, \"seconds\": $((SECONDS - begin))}" >> "$facts"
  echo "$name: rc $rc, $((SECONDS - begin)) s, $(grep -c '^{' "$build/step.out") facts"
  [ $rc -ne 0 ] && tail -n 3 "$build/step.err" && tail -n 1 "$build/step.out"
  grep -h '"failed"' "$build/step.out"
  return 0
}

# What compute-sanitizer says of each planted bug.
sanitize() {
  local tool bug
  for tool in memcheck racecheck synccheck initcheck; do
    for bug in 0 1 2 3 4 5 6 7; do
      ( timeout 60 compute-sanitizer --tool $tool "./planted_$bug" none 1 > "sanitize_${tool}_$bug" 2>&1; echo "rc $?" >> "sanitize_${tool}_$bug" ) &
    done
    wait
    for bug in 0 1 2 3 4 5 6 7; do
      python3 - "$tool" $bug "sanitize_${tool}_$bug" << 'END'
import json, re, sys
lines = open(sys.argv[3], errors="replace").read().splitlines()
said = [l.replace("=========", "").strip() for l in lines]
summary = [l for l in said if "SUMMARY" in l]
first = next((l for l in said if re.search(r"Invalid|Race reported|hazard|Misaligned|Barrier error|Uninitialized|Error:|Warning:|divergent", l)), "")
where = next((l for l in said if re.search(r"\.cuh:\d+", l)), "")
print(json.dumps({"name": f"compute-sanitizer {sys.argv[1]}, bug {sys.argv[2]}", "value": " | ".join(summary + [first[:200], where[-120:]]), "rc": said[-1] if said else ""}))
END
    done
  done
}

run() {
  case $1 in
    machine) step machine 20 bash -c 'nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader | sed "s/.*/{\"name\": \"nvidia-smi\", \"value\": \"&\"}/"; lscpu | grep "Model name" | sed "s/.*: *\(.*\)/{\"name\": \"cpu\", \"value\": \"\1\"}/"; nvcc --version | grep release | sed "s/.*/{\"name\": \"nvcc\", \"value\": \"&\"}/"' ;;
    properties) step properties 40 ./properties "$out/device.json" ;;
    attention) step attention 150 ./attention "$here/h200_by_hand.json" "$out/device.json" ;;
    contract) step contract 120 ./contract
              step "contract, modules loaded at start" 60 env CUDA_MODULE_LOADING=EAGER ./contract copies ;;
    sticky) for kind in none illegal misaligned trap shared host; do step "sticky $kind" 20 ./sticky $kind; done
            step "sticky illegal, reset" 20 ./sticky illegal reset ;;
    latencies) step latencies 90 ./latencies ;;
    transfers) step transfers 90 ./transfers rates ;;
    pinning) step pinning 90 ./transfers pinning ;;
    bits) step bits 110 ./bits
          step "bits, nvcc's default -fmad" 60 ./bits_fused brief ;;
    gemm) nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,clocks_event_reasons.active --format=csv,noheader -lms 500 > "$out/clocks.csv" 2>&1 & local watch=$!
          step gemm 150 ./gemm
          kill $watch
          step "gemm, heuristic in a new process" 30 ./gemm algorithms ;;
    step) for sequences in ${SEQUENCES:-8 4 16}; do step "step, $sequences sequences" 110 ./step $sequences; done ;;
    sustained) step sustained 120 ./gemm sustained ;;
    bandwidth) step bandwidth 60 ./bandwidth ;;
    nccl) for part in one two never exclude; do step "nccl $part" 30 env NCCL_SOCKET_IFNAME=lo ./nccl $part; done ;;
    mma) step mma 20 ./mma "$out/mma.bin" ;;
    processes) step "one process" 20 ./two_processes "one process alone" 2
               ./two_processes "first of two processes" 3 > first.out & ./two_processes "second of two processes" 3 > second.out; wait
               ./two_processes "process beside one that fails" 3 > third.out & ./two_processes "process that fails" 2 fail > fourth.out; wait
               step "two processes" 5 cat first.out second.out third.out fourth.out ;;
    planted) ./planted_cpu "$build/fibers.bin"
             for bug in 0 1 2 3 4 5 6 7; do step "planted $bug" 30 "./planted_$bug" "$build/fibers.bin"; done ;;
    sanitize) step sanitize 200 bash -c "$(declare -f sanitize); sanitize" ;;
    torch_attention) step torch_attention 60 python3 "$here/torch_gpt.py" --attention-only ;;
    torch) step "torch f32 blocks" 200 python3 "$here/torch_gpt.py" --parameters f32 --compile blocks --attention "${TORCH_ATTENTION:-cudnn}" 8 4 16 ;;
    torch_large) step "torch f32 model, 24 sequences" 120 python3 "$here/torch_gpt.py" --parameters f32 --compile model --attention "${TORCH_ATTENTION:-cudnn}" 24 ;;
    torch_model) step "torch f32 model" 200 python3 "$here/torch_gpt.py" --parameters f32 --compile model --attention "${TORCH_ATTENTION:-cudnn}" 8 16 ;;
    torch_bf16) step "torch bf16 blocks" 150 python3 "$here/torch_gpt.py" --parameters bf16 --compile blocks --attention "${TORCH_ATTENTION:-cudnn}" 8 16 ;;
    *) echo "no step $1" ;;
  esac
}

build_all
echo "built after $SECONDS s"
[ $# -eq 0 ] && set -- machine properties contract sticky latencies transfers pinning bits gemm sustained attention bandwidth step nccl planted mma processes sanitize torch_attention torch torch_bf16 torch_model
for name in "$@"; do run "$name"; done
