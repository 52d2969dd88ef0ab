#!/usr/bin/env bash
# The whole loop on this machine: a command queued, run by a real node, published, proved. Needs
# nothing started, leaves nothing behind, and ends with 0 only if every part of it happened.
# Called by `make demo`, which installs the servers first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Seconds.
readonly START_WITHIN=180 SETTLE_WITHIN=60 STOP_WITHIN=15

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }
if [[ ! -t 1 ]]; then say() { printf '\n%s\n' "$*"; }; fi

# The value of a field in a JSON object on stdin: `field nodes 0 nodeId`.
field() {
    python3 -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]:
    value = value[int(name) if name.isdigit() else name]
print(value)' "$@"
}

up_pid='' watch_pid='' folder=''
clean_up() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    if [[ -n $watch_pid ]] && kill "$watch_pid" 2>/dev/null; then wait "$watch_pid" 2>/dev/null || true; fi
    if [[ -n $up_pid ]] && kill -TERM "$up_pid" 2>/dev/null; then
        local deadline=$((SECONDS + STOP_WITHIN))
        while kill -0 "$up_pid" 2>/dev/null; do
            if ((SECONDS >= deadline)); then
                printf 'demo: `up` did not stop within %s s\n' "$STOP_WITHIN" >&2
                kill -KILL "$up_pid" 2>/dev/null || true
                ((code == 0)) && code=1
                break
            fi
            sleep 0.1
        done
        wait "$up_pid" 2>/dev/null || true
    fi
    if [[ -n $folder ]]; then
        if ((code != 0)) && [[ -s $folder/up.log ]]; then
            printf 'demo: the end of the log of `up`:\n' >&2
            tail -n 20 "$folder/up.log" >&2
        fi
        rm -rf "$folder"
    fi
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

say '1. Build the one binary (the first time, this takes up to ten minutes)'
cargo build --locked --package ledger-cli --bin command-ledger
target=${CARGO_TARGET_DIR:-target}
ledger=$(cd "$target/debug" && pwd)/command-ledger
printf '%s\n' "$ledger"

folder=$(mktemp -d /tmp/command-ledger-demo.XXXXXX)
# Run by root, Postgres runs as another account, which must find its way in. What is secret in here
# is readable by its owner only.
chmod 0711 "$folder"

say '2. Start Postgres, NATS, the service, and a node that is this machine'
printf '$ command-ledger up --data %s --json\n' "$folder/data"
# A group of its own, so that Ctrl-C reaches it through this script and in order.
set -m
"$ledger" up --data "$folder/data" --json >"$folder/up.json" 2>"$folder/up.log" </dev/null &
up_pid=$!
set +m
deadline=$((SECONDS + START_WITHIN))
until [[ -s $folder/up.json ]]; do
    kill -0 "$up_pid" 2>/dev/null || fail '`up` ended before it was ready'
    ((SECONDS < deadline)) || fail "\`up\` was not ready within $START_WITHIN s"
    sleep 0.1
done
of_up() { field "$@" <"$folder/up.json"; }
COMMAND_LEDGER_API=$(of_up api)
COMMAND_LEDGER_TOKEN=$(of_up token)
COMMAND_LEDGER_TENANT=$(of_up tenantId)
COMMAND_LEDGER_NATS=$(of_up nats)
COMMAND_LEDGER_POSTGRES=$(of_up postgres)
export COMMAND_LEDGER_API COMMAND_LEDGER_TOKEN COMMAND_LEDGER_TENANT COMMAND_LEDGER_NATS COMMAND_LEDGER_POSTGRES
node=$(of_up nodes 0 nodeId)
"$ledger" node list

say '3. Subscribe to its events on NATS, then queue inventory.refresh'
printf '$ command-ledger watch --node %s &\n' "$node"
# The shell in the background may open them after the first look.
: >"$folder/watch.log"
"$ledger" watch --node "$node" >"$folder/events" 2>"$folder/watch.log" </dev/null &
watch_pid=$!
deadline=$((SECONDS + 30))
until grep -q '^watching from' "$folder/watch.log"; do
    kill -0 "$watch_pid" 2>/dev/null || fail "$(cat "$folder/watch.log")"
    ((SECONDS < deadline)) || fail 'the subscription did not begin within 30 s'
    sleep 0.1
done
printf '$ command-ledger api commands.run tenantId=… nodeId=%s kind=inventory.refresh idempotencyKey=demo\n' "$node"
command=$("$ledger" api commands.run tenantId="$COMMAND_LEDGER_TENANT" nodeId="$node" \
    kind=inventory.refresh idempotencyKey=demo | field id)
about=(tenantId="$COMMAND_LEDGER_TENANT" nodeId="$node" commandId="$command")
deadline=$((SECONDS + SETTLE_WITHIN))
while
    "$ledger" api commands.get "${about[@]}" >"$folder/command.json"
    state=$(field state <"$folder/command.json")
    [[ $state == pending || $state == dispatched || $state == acked || $state == running ]]
do
    ((SECONDS < deadline)) || fail "the command is still $state after $SETTLE_WITHIN s"
    sleep 0.1
done

say '4. The command, as it ended'
python3 - "$folder/command.json" <<'PYTHON'
import json, sys
command = json.load(open(sys.argv[1]))
for name in ("id", "nodeId", "seq", "kind", "lane", "state", "queuedAt", "dispatchedAt", "ackedAt",
             "runningAt", "settledAt", "attempts", "issuedBy"):
    print(f"  {name:<13} {command.get(name, '-')}")
PYTHON
[[ $state == succeeded ]] || fail "the command ended as $state"

say '5. The inventory that the node sent: this machine'
python3 - "$folder/command.json" <<'PYTHON'
import json, sys
sections = json.load(open(sys.argv[1]))["result"]["sections"]

def size(count):
    return f"{count / 2**30:.1f} GiB"

def each(section, text):
    lines = [text(item) for item in section["items"][:4]]
    return "; ".join(lines) + ("; …" if section["count"] > 4 else "")

shown = {
    "system": lambda s: f"{s['hostname']}, up since {s['bootedAt']}",
    "cpu": lambda s: f"{s['logicalCount']} logical, {s['model']}",
    "memory": lambda s: f"{size(s['totalBytes'])}, {size(s['availableBytes'])} of it available",
    "disks": lambda s: each(s, lambda disk: f"{disk['name']} {size(disk['sizeBytes'])}"),
    "nics": lambda s: each(s, lambda nic: f"{nic['name']} {nic['state']} {nic['mac']}"),
    "gpus": lambda s: each(s, lambda gpu: gpu.get("name") or gpu.get("uuid") or "unnamed"),
    "os": lambda s: f"{s['prettyName']}, {s['kernelName']} {s['kernelRelease']}",
}
for name in ("system", "cpu", "memory", "disks", "nics", "gpus", "bmc", "os"):
    section = sections[name]
    try:
        text = shown[name](section) if section["present"] else f"absent: {section['why']}"
    except (KeyError, TypeError):
        # Machines differ in what they tell; what there is stays true.
        text = json.dumps(section)[:120]
    print(f"  {name:<8} {text}")
PYTHON

say '6. Its timeline in the ledger'
"$ledger" api commands.timeline "${about[@]}" | python3 -c '
import json, sys
for event in json.load(sys.stdin)["events"]:
    print("  {position:>4}  {at}  {type:<20} by {actor}".format(**event))'

say '7. The same events, as the subscriber received them from NATS'
deadline=$((SECONDS + 30))
until grep -q " command.settled .*$command" "$folder/events"; do
    kill -0 "$watch_pid" 2>/dev/null || fail "the subscriber ended: $(cat "$folder/watch.log")"
    ((SECONDS < deadline)) || fail 'command.settled did not arrive on NATS within 30 s'
    sleep 0.1
done
cat "$folder/events"
for event in node.command.queued node.command.dispatched command.settled; do
    grep -q " $event .*$command" "$folder/events" || fail "$event did not arrive on NATS"
done

say '8. The log replayed from its first event, and compared with the live tables; and every rule of the ledger checked'
printf '$ command-ledger audit replay\n'
"$ledger" audit replay
printf '\n$ command-ledger audit check\n'
"$ledger" audit check

say 'Done: it was queued once, it ran once, and the ledger proves it. Everything stops now.'
