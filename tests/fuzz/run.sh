#!/usr/bin/env bash
# Runs libFuzzer on the targets: tests/fuzz/run.sh [SECONDS [TARGET...]]
#
# Needs a nightly toolchain (`rustup toolchain install nightly`) and a C++ compiler, nothing else. New inputs
# are kept in target/fuzz/corpus/ for the next run. A finding ends the run: fix it, and add its input to
# corpus/<target>/, where every `cargo test` replays it.
set -euo pipefail

seconds=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(codec snapshot apply message dns network registry signature archive policy request)

# The most bytes of an input, where 4096 are too few: more than the limits of a token, of a certificate request and of
# what a signature signs, and an archive of a hundred entries, each of which has 512 bytes or more. The limits of an
# archive and of a manifest with signatures are beyond that, since long inputs are slow.
declare -A longest=([registry]=$((80 << 10)) [request]=$((12 << 10)) [signature]=$((24 << 10)) [archive]=$((64 << 10)))

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${CARGO_TARGET_DIR:-$root/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# The flags of cargo-fuzz: counters at every edge, comparisons, and the address sanitizer, which also bounds
# allocations.
flags=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Zsanitizer=address
    -Cdebug-assertions=on
    -Coverflow-checks=on
)
echo "building with $(rustc +nightly --version)"
# Release builds are stripped; a finding needs functions and lines. Optimisation across crates makes the build long.
export CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_PROFILE_RELEASE_OPT_LEVEL=2
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
# With --target, build scripts and macros are built without these flags.
RUSTFLAGS="${flags[*]}" cargo +nightly build --manifest-path "$root/Cargo.toml" --target-dir "$work" \
    --locked --release --target "$host" -p warren-test-fuzz --features libfuzzer --bin warren-fuzz
fuzzer=$work/$host/release/warren-fuzz

for target in "${targets[@]}"; do
    learned=$work/corpus/$target kept=$here/corpus/$target findings=$work/findings/$target
    mkdir -p "$learned" "$kept" "$findings"
    echo "== $target, $seconds s"
    if ! WARREN_FUZZ_TARGET=$target "$fuzzer" "$learned" "$kept" \
        -max_total_time="$seconds" -max_len="${longest[$target]:-4096}" \
        -timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=64 \
        -artifact_prefix="$findings/" -print_final_stats=1 2>"$work/$target.log"; then
        tail -n 60 "$work/$target.log" >&2
        echo "$target: found a defect; its input is in $findings, the full output in $work/$target.log" >&2
        exit 1
    fi
    grep -E '^(Done|stat::number_of_executed_units|stat::peak_rss_mb)' "$work/$target.log"
    grep -E ' cov: ' "$work/$target.log" | tail -n 1
done
