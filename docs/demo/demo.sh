#!/usr/bin/env bash
# The demo of `make run` and `make stop`: one hybrid node in the background with all its files in one
# directory, and a service of two replicas on a published port. Both verbs are harmless the second time.
#
#   WARREN_RUN       the directory        (default: .run in the repository)
#   API_PORT         the node's own port  (default: 8080; only used when the cluster is created)
#   DEMO_PORT        the published port   (default: 8088; only used when the service is created)
#   WARREN_PROGRAMS  a directory with built `warren` and `demo-image` (default: both are built here)
set -euo pipefail
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=$(realpath --canonicalize-missing \
    "${WARREN_PROGRAMS:-${CARGO_TARGET_DIR:-$repository/target}/release}")
binary=$(realpath --canonicalize-missing "$programs/warren")
run=$(realpath --canonicalize-missing "${WARREN_RUN:-$repository/.run}")
api_port=${API_PORT:-8080}
demo_port=${DEMO_PORT:-8088}

# A directory with this file was created by this script, which may remove it.
marker=$run/.warren-demo
log=$run/node.log
pid_file=$run/node.pid
containerd_socket=$run/node/containerd/containerd.sock

ready_deadline=60
remove_deadline=60
stop_deadline=30

fail() {
    echo "error: $*" >&2
    exit 1
}

step() {
    echo "==> $*"
}

# The CLI with its own contexts file: that of the user is not changed.
warren() {
    WARREN_CONTEXTS=$run/contexts.toml "$binary" "$@"
}

# until_true SECONDS COMMAND...: tries the command until it succeeds; fails at the deadline.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}

# ---- processes ------------------------------------------------------------------------------------------

# The node's process id, if it runs: the number in the file may be reused by another process.
node_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    [[ $(readlink "/proc/$pid/exe") == "$binary"* ]] || return 1
    echo "$pid"
}

is_rooted_here() {
    awk -v run="$run/" '$5 == "/" && index($0, run) { found = 1 } END { exit !found }' \
        "$1/mountinfo" 2>/dev/null
}

# Ids of the processes that belong to the directory: the node's own programs, its containerd, the shims, and
# every process with its root file system there. A user's `tail` of the log does not belong to it.
directory_pids() {
    local proc exe
    for proc in /proc/[0-9]*; do
        exe=$(readlink "$proc/exe" 2>/dev/null) || continue
        case ${exe##*/} in
            containerd | containerd-shim*)
                if tr '\0' ' ' <"$proc/cmdline" 2>/dev/null | grep --quiet --fixed-strings "$run/"; then
                    echo "${proc#/proc/}"
                fi
                ;;
            *)
                if [[ $exe == "$run/"* ]] || is_rooted_here "$proc"; then
                    echo "${proc#/proc/}"
                fi
                ;;
        esac
    done
    return 0
}

none_left() {
    [[ -z $(directory_pids) ]]
}

# A zombie has no executable any more, but still an id.
gone() {
    ! readlink "/proc/$1/exe" >/dev/null
}

# ---- run ------------------------------------------------------------------------------------------------

prepare_directory() {
    # A socket's path has at most 107 bytes, and the longest one here is 40 bytes below the directory.
    ((${#run} <= 65)) || fail "the path $run is too long for sockets in it: set WARREN_RUN to a shorter path"
    if [[ -e $run && ! -e $marker ]] && [[ ! -d $run || -n $(ls -A "$run") ]]; then
        fail "$run exists and was not created by make run: remove it, or set WARREN_RUN to another directory"
    fi
    mkdir -p "$run"
    chmod 0700 "$run"
    touch "$marker"
}

build() {
    if [[ -z ${WARREN_PROGRAMS:-} ]]; then
        step "building warren and the demo's image (the first time takes some minutes)"
        cargo build --manifest-path "$repository/Cargo.toml" --release --locked \
            -p warren --bin warren -p warren-testkit --bin demo-image
    fi
    "$programs/demo-image" "$run/demo.tar"
}

require_free_port() {
    local holder
    holder=$(ss --no-header --listening --tcp --numeric --processes "sport = :$1")
    [[ -z $holder ]] || fail "port $1 is in use: $holder; choose another port with make run $2=PORT"
}

start_node() {
    local pid verb=(run)
    if pid=$(node_pid); then
        step "the node already runs (process $pid)"
        [[ $(readlink "/proc/$pid/exe") == "$binary" ]] ||
            echo "    it runs an earlier build: make stop and make run replace it"
        return
    fi
    if [[ ! -e $run/data ]]; then
        require_free_port "$api_port" API_PORT
        # Loopback: the demo's API is not reachable from outside.
        verb=(init --listen "127.0.0.1:$api_port" --advertise 127.0.0.1)
    fi
    step "starting a hybrid node in $run"
    # A session of its own, so that the terminal's ^C and hang-up do not reach it.
    WARREN_CONTEXTS=$run/contexts.toml setsid "$binary" manager "${verb[@]}" --data-dir "$run/data" \
        --run-dir "$run/node" --containerd-socket "$containerd_socket" >>"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    local problem="is not ready after $ready_deadline s"
    until_true "$ready_deadline" ready_or_gone $! || true
    if gone $!; then
        problem="has ended"
    elif ready; then
        return
    fi
    echo "---- the end of $log" >&2
    tail -n 40 "$log" >&2
    fail "the node $problem; make stop removes its data"
}

ready_or_gone() {
    gone "$1" || ready
}

ready() {
    warren cluster info >/dev/null 2>&1 && [[ $(warren node ls 2>/dev/null) == *READY* ]]
}

ensure_service() {
    local code=0
    step "importing the demo's image"
    warren image import "$run/demo.tar"
    warren service inspect demo >/dev/null 2>&1 || code=$?
    case $code in
        0) step "the service demo already exists" ;;
        3)
            step "creating the service demo: two replicas, port $demo_port"
            warren service create demo --image warren.local/demo:1 --replicas 2 --publish "$demo_port:80"
            ;;
        *) warren service inspect demo || exit "$code" ;;
    esac
    warren service ps demo
}

# Fetches the page as text.
fetch_page() {
    local url=$1
    step "fetching $url"
    curl --silent --show-error --fail --max-time 5 --retry 10 --retry-delay 1 --retry-all-errors "$url" |
        sed -e '/<style>/,/<\/style>/d' -e 's/<\/th>/: /' -e 's/<[^>]*>//g' \
            -e '/^[[:space:]]*$/d' -e 's/^/    /'
}

# The port of the existing service, which may differ from this run's DEMO_PORT.
published_url() {
    local port
    port=$(warren service inspect demo -o json | sed --quiet --regexp-extended \
        's/.*"(published|hostPort|publishedPort)": *([0-9]+).*/\2/p' | head -n 1)
    echo "http://127.0.0.1:${port:-$demo_port}/"
}

say_what_next() {
    cat <<END

The node runs in the background. Its files are in $run, its log is $log.
To use it:
    export WARREN_CONTEXTS=$run/contexts.toml PATH=$programs:\$PATH
Then try:
    curl $1                  again and again: both replicas answer
    warren service scale demo=5
    warren service ps demo
    warren service inspect demo
    warren node ls
    warren service rm demo
To stop it and remove everything:
    make stop
END
}

up() {
    local url
    "$repository/tests/testkit/ensure-packages.sh" run
    prepare_directory
    build
    start_node
    ensure_service
    url=$(published_url)
    fetch_page "$url"
    say_what_next "$url"
}

# ---- stop -----------------------------------------------------------------------------------------------

no_tasks() {
    [[ $(warren task ls -o json 2>/dev/null | tr -d '[:space:]') == "[]" ]]
}

remove_services() {
    local listed name names
    listed=$(warren service ls -o json) || return 1
    # A service's document names it twice: itself, and in its spec.
    mapfile -t names < <(sed --quiet 's/.*"name": *"\([^"]*\)".*/\1/p' <<<"$listed" | sort --unique)
    for name in "${names[@]}"; do
        step "removing the service $name"
        warren service rm "$name" || echo "    it was not removed: its containers are stopped below"
    done
    until_true "$remove_deadline" no_tasks ||
        echo "    some tasks are not removed after $remove_deadline s: they are stopped below"
}

stop_node() {
    local pid=$1
    step "stopping the node (process $pid)"
    kill -TERM "$pid"
    until_true "$stop_deadline" gone "$pid" && return
    echo "    it did not end within $stop_deadline s: it is killed"
    kill -KILL "$pid"
    until_true "$stop_deadline" gone "$pid" || fail "process $pid cannot be killed"
}

# containerd ends with the node or keeps running for its containers; here it must end.
end_processes() {
    local pids
    pids=$(directory_pids)
    [[ -n $pids ]] || return 0
    # shellcheck disable=SC2086 # one word per process id
    kill -TERM $pids 2>/dev/null || true
    until_true 5 none_left && return
    pids=$(directory_pids)
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    until_true "$stop_deadline" none_left || fail "these processes cannot be killed: $(directory_pids)"
}

remove_directory() {
    local path state
    awk -v run="$run/" 'index($5, run) == 1 { print $5 }' /proc/self/mountinfo | tac | while read -r path; do
        umount --lazy "$path"
    done
    # runc keeps its states outside; a leftover keeps the next container of that name from starting.
    for state in /run/containerd/runc/*/*/state.json; do
        if [[ -e $state ]] && grep --quiet --fixed-strings "$run/" "$state"; then
            rm -r "${state%/*}"
        fi
    done
    rm -rf --one-file-system "$run"
}

down() {
    local pid
    [[ $(id -u) == 0 ]] || fail "stopping the node needs root, but this runs as $(id -un): use sudo make stop"
    if [[ ! -e $marker ]]; then
        step "nothing to stop: there is no node in $run"
        return
    fi
    # A killed node leaves containers and rules behind: after a restart it adopts and removes them.
    if ! node_pid >/dev/null && [[ -e $run/data && -x $binary ]] && ! none_left; then
        step "the node has ended and its containers still run: starting it to remove them"
        (start_node) || echo "    it does not start: its containers are killed below"
    fi
    if pid=$(node_pid); then
        remove_services || echo "    the node does not answer: its containers are killed below"
        stop_node "$pid"
    fi
    end_processes
    remove_directory
    step "removed $run and everything that ran in it"
}

case ${1:-} in
    run) up ;;
    stop) down ;;
    *) fail "usage: demo.sh run|stop" ;;
esac
