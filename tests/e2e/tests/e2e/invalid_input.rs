//! Invalid input to a running cluster: each case gets its exit code and its reason, and changes nothing.

use std::time::Duration;

use warren_testkit::cli::WarrenCli;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON, WEB, still_inventory};
use crate::e2e::task_document::{self, TaskDocument};
use crate::e2e::traffic::ClientLocation;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const UNREACHABLE: i32 = 5;
const TIMED_OUT: i32 = 7;

/// The arguments of a command separated by single blanks, its exit code, and a part of its error. `new`
/// stands for `service create new --image warren.local/box:1`.
const REFUSED: &[(&str, i32, &str)] = &[
    // Names.
    ("service create web --image warren.local/box:1", CONFLICT, "service web already exists"),
    ("service create We_b! --image warren.local/box:1", USAGE, "name"),
    ("service create --image warren.local/box:1", USAGE, "NAME"),
    ("service inspect nobody", NOT_FOUND, "\"nobody\" does not exist"),
    ("service ps nobody", NOT_FOUND, "\"nobody\" does not exist"),
    ("service rm nobody", NOT_FOUND, "\"nobody\" does not exist"),
    ("service rm web nobody", NOT_FOUND, "\"nobody\" does not exist"),
    ("service scale nobody=2", NOT_FOUND, "\"nobody\" does not exist"),
    ("service scale web=3 nobody=2", NOT_FOUND, "\"nobody\" does not exist"),
    ("task inspect web.9", NOT_FOUND, "\"web.9\" does not exist"),
    ("node inspect nobody", NOT_FOUND, "\"nobody\" does not exist"),
    // Values.
    ("new --replicas -1", USAGE, "replicas"),
    ("new --replicas many", USAGE, "whole number"),
    ("service scale web=-1", USAGE, "replicas"),
    ("new --memory 1Mi", USAGE, "limits.memory: 1MiB is below the runtime's minimum of 6MiB"),
    ("new --memory lots", USAGE, "is not an amount of memory"),
    ("new --cpus 0.001", USAGE, "limits.cpu"),
    ("new --memory 64Mi --reserve-memory 65Mi", USAGE, "reservations.memory"),
    ("new --stop-grace soon", USAGE, "stop-grace"),
    ("new --env =b", USAGE, "name is empty"),
    ("new --env NOBODY_HAS_SET_THIS", USAGE, "NOBODY_HAS_SET_THIS"),
    ("new --env-file /no/such/file", NOT_FOUND, "/no/such/file"),
    ("service create new --image Not/A:Reference!", USAGE, "image"),
    ("service create new", USAGE, "--image"),
    ("new --mode sometimes", USAGE, "mode"),
    ("new --constraint node.label==x", USAGE, "\"node.label\" cannot be compared"),
    ("new --max-per-node 0", USAGE, "maxPerNode"),
    ("new --pull sometimes", USAGE, "missing, always or never"),
    ("new --resolve-image sometimes", USAGE, "manager or worker"),
    ("new --workdir here", USAGE, "task.workdir"),
    ("new --user a:b:c", USAGE, "task.user"),
    ("new --group a:b", USAGE, "task.groups[0]"),
    ("new --hostname a_b!", USAGE, "task.hostname"),
    ("new --host db", USAGE, "NAME:IP"),
    ("new --stop-signal SIGNOPE", USAGE, "is not a signal"),
    ("new --cap-add NOPE", USAGE, "is not a Linux capability"),
    ("new --ulimit files=1", USAGE, "is not a ulimit"),
    ("new --ulimit nofile=5:4", USAGE, "is more than the hard limit"),
    ("new --sysctl nodot=1", USAGE, "is not a sysctl"),
    ("new --shm-size 1", USAGE, "task.shmSize"),
    ("new --storage-limit 1", USAGE, "task.storageLimit"),
    ("new --oom-score-adj 2000", USAGE, "is not between -1000 and 1000"),
    ("new --pids 0", USAGE, "task.limits.pids"),
    ("new --device null", USAGE, "is not an absolute path"),
    ("new --device /dev/null:/dev/x:q", USAGE, "rwm"),
    ("new --seccomp config/-", USAGE, "is not a name"),
    ("new --security-opt label=disable", USAGE, "there are no-new-privileges, seccomp=FILE"),
    ("new --apparmor a&b", USAGE, "is not an AppArmor profile"),
    ("new --tmpfs here", USAGE, "is not an absolute path"),
    ("new --tmpfs /proc", USAGE, "reserved for the container"),
    ("new --bind here:/there", USAGE, "is not an absolute path"),
    ("new --tmpfs /a --tmpfs /a", USAGE, "is given twice"),
    ("new --restart sometimes", USAGE, "any, on-failure or none"),
    ("new --restart-max 99", USAGE, "task.restart.max"),
    ("new --restart-delay 1h", USAGE, "task.restart.delay"),
    ("new --log-files 0", USAGE, "task.logs.maxFiles"),
    ("new --log-max-size 1", USAGE, "task.logs.maxSize"),
    ("service update nobody --force", NOT_FOUND, "\"nobody\" does not exist"),
    ("node update nobody --availability drain", NOT_FOUND, "\"nobody\" does not exist"),
    ("node update nobody --availability away", USAGE, "active, pause or drain"),
    ("token rm nobody", NOT_FOUND, "\"nobody\" does not exist"),
    // Health checks.
    ("new --health-http nothing", USAGE, "/PATH"),
    ("new --health-http /", USAGE, "port"),
    ("new --health-http :80/a --health-tcp 80", USAGE, "--health-tcp"),
    ("new --health-tcp 0", USAGE, "65535"),
    ("new --health-tcp 80 --health-interval 1ms", USAGE, "health.interval"),
    ("new --health-tcp 80 --health-timeout 0s", USAGE, "health.timeout"),
    ("new --health-tcp 80 --health-retries 0", USAGE, "health.retries"),
    ("new --health-retries 2", USAGE, "--health"),
    ("new --health-http :80/ --health-header a:b=c", USAGE, "header"),
    // Ports.
    ("new --publish 8088:81", CONFLICT, "host port 8088 is already published by service web"),
    ("new --publish 9:80 --publish 9:81", USAGE, "ports[1].hostPort"),
    ("new --publish 80-90:80", USAGE, "11 ports of the node cannot be mapped to 1 of the container"),
    ("new --publish 70000:80", USAGE, "70000"),
    ("new --network none --publish 80:80", USAGE, "only a task with an address of its own can publish ports"),
    // Networks.
    ("new --network nowhere", USAGE, "network nowhere does not exist"),
    ("new --alias web", USAGE, "web is the name of a service on network default"),
    ("network create none", USAGE, "none is not a network"),
    ("network rm default", CONFLICT, "the network default always exists"),
    // Unsupported features are named, not treated as typing errors.
    ("new --priority 3", USAGE, "--priority of `warren service create` is not supported"),
    ("new --update-parallelism many", USAGE, "give one like 2, 25% or 0"),
    ("new --update-order start-first --volume data:/data", USAGE, "two tasks would write to the same volume"),
    ("service update web --rollback-on-failure rollback", USAGE, "a rollback is not rolled back"),
    ("service update web --resume", CONFLICT, "its update is not paused"),
    ("token create --role emperor", USAGE, "emperor"),
    ("manager rm nobody", NOT_FOUND, "nobody"),
    ("user create ann --role emperor", USAGE, "viewer, operator or admin"),
    ("user create admin --role viewer", USAGE, "admin is the administrator of a manager's machine"),
    ("user rm nobody", NOT_FOUND, "\"nobody\" does not exist"),
    ("manager update nobody --advertise a:b:c", USAGE, "a:b:c"),
    ("new --on-disconnect stop-after=1s", USAGE, "10"),
    ("new --publish 80:80/icmp", USAGE, "is not a protocol; give tcp, udp or sctp"),
    ("new --publish 127.0.0.1:80:80,mode=ingress", USAGE, "leave the address out, or give mode=host"),
    ("new --no-such-flag", USAGE, "--no-such-flag"),
    ("context use nobody", NOT_FOUND, "there is no context"),
    ("run nginx", USAGE, "use `warren service create NAME --image IMAGE`, or `warren run --detach"),
    ("top", USAGE, "needs a terminal"),
    ("new --registry-credential x", USAGE, "registry login"),
    ("new --sysctl vm.swappiness=1", USAGE, "vm.swappiness applies to the whole machine"),
    ("service create new --image UPPER/Bad:::tag", USAGE, "its path must be lower case"),
    ("new --replicas 1000000", CONFLICT, "max-replicas-per-service"),
    ("service scale web=1000000", CONFLICT, "max-replicas-per-service"),
    ("cluster update --max-replicas-per-service 0", USAGE, "0 is out of range"),
    ("new --tmpfs /proc/x", USAGE, "is in /proc"),
    // The manager.
    ("service ls --manager 127.0.0.1:1", UNREACHABLE, "127.0.0.1:1"),
    ("service ls --context nobody", NOT_FOUND, "nobody"),
    // Archives.
    ("image import /no/such/file", NOT_FOUND, "there is no such file"),
    ("image import {scratch}", USAGE, "is a directory"),
    ("image import {scratch}/torn.tar", FAILED, "the image was not imported"),
    ("image import {scratch}/text.tar", FAILED, "the image was not imported"),
    ("image import {scratch}/garbage.bin", FAILED, "is no tar and starts with the bytes 1b 5b 32 4a"),
    ("image import {scratch}/escape.tar", FAILED, ".."),
    ("image import {scratch}/changed.tar", FAILED, "digest"),
    ("image import {scratch}/box.tar --node nobody", NOT_FOUND, "nobody"),
];

#[test]
fn bad_input_is_refused_with_its_reason_and_changes_nothing() {
    let world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    // The task is ready before the port is open.
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
    write_bad_archives(&world);
    let services = || world.warren().run_ok(&["service", "ls", "-o", "json"]);
    let before = services();
    let inventory = still_inventory(&world.node);
    let scratch = world.node.scratch().display().to_string();
    for (line, code, reason) in REFUSED {
        let line = match line.strip_prefix("new ") {
            Some(flags) => format!("service create new --image {BOX} {flags}"),
            None => line.replace("{scratch}", &scratch),
        };
        let text = world.warren().run_refused(&line.split(' ').collect::<Vec<_>>(), *code);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains(reason), "the output of `warren {line}` must contain {reason:?}:\n{text}");
        assert_eq!(services(), before, "`warren {line}` changed something");
    }
    assert_eq!(task_document::all(&world.node).len(), 1);
    world.assert_at_rest(&inventory);
}

fn write_bad_archives(world: &NodeFixture) {
    let scratch = world.node.scratch();
    let good =
        TestImage::new("warren.local/bad:1").layer(ImageLayer::new().file("/data", vec![7; 100_000], 0o644));
    let good = good.oci_archive().bytes;
    let mut changed = good.clone();
    let at = changed.len() / 2;
    changed[at] ^= 1;
    let bad = [
        ("torn.tar", good[..good.len() / 3].to_vec()),
        ("text.tar", b"this is not an archive\n".repeat(100)),
        ("changed.tar", changed),
        // Clears a terminal, and is no text.
        ("garbage.bin", b"\x1b[2J\x07\xff\xfe\x00\x9b31m".repeat(200)),
        ("escape.tar", escaping_archive()),
    ];
    for (name, bytes) in bad {
        std::fs::write(scratch.join(name), bytes).unwrap();
    }
}

/// A tar whose only file is outside of the directory that it is unpacked in. POSIX ustar: name at 0, mode at
/// 100, size at 124, checksum at 148 over the header with blanks in the checksum's place, type at 156.
fn escaping_archive() -> Vec<u8> {
    let mut tar = vec![0_u8; 512 * 4];
    let mut put = |at: usize, text: &str| tar[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, "../../escaped");
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, "00000000004\0");
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    put(512, "evil");
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\0 ");
    tar[148..148 + sum.len()].copy_from_slice(sum.as_bytes());
    tar
}

/// Services that are accepted and cannot run: flags, the exit code of `service create`, a part of its output,
/// and the final state of their task.
const BROKEN: &[(&str, &str, i32, &str, &str)] = &[
    ("image", "--image warren.local/missing:1 --timeout 20s", TIMED_OUT, "registry", "PREPARING"),
    ("never", "--image warren.local/missing:1 --pull never", 1, "warren.local/missing:1", "REJECTED"),
    ("user", "--image warren.local/box:1 --user stranger", 1, "\"stranger\"", "REJECTED"),
    ("group", "--image warren.local/box:1 --group strangers", 1, "\"strangers\"", "REJECTED"),
    ("device", "--image warren.local/box:1 --device /dev/no-such", 1, "/dev/no-such", "REJECTED"),
    ("apparmor", "--image warren.local/box:1 --apparmor no-such", 1, "the profile no-such", "REJECTED"),
    ("file", "--image warren.local/box:1 --device /etc/passwd", 1, "/etc/passwd", "REJECTED"),
    ("bind", "--image warren.local/box:1 --bind /no/such/place:/x", 1, "/no/such/place", "REJECTED"),
    (
        "over",
        "--image warren.local/box:1 --bind /etc/passwd:/bin",
        1,
        "the image has a directory at /bin",
        "REJECTED",
    ),
    ("command", "--image warren.local/box:1 --command /no/such", 1, "cannot be run", "REJECTED"),
    (
        "port",
        "--image warren.local/demo:1 --publish 9000:80,mode=host",
        1,
        "is in use by process",
        "REJECTED",
    ),
    ("address", "--image warren.local/demo:1 --publish 192.0.2.1:9:80", 1, "no such address", "REJECTED"),
    (
        "room",
        "--image warren.local/box:1 --reserve-memory 900Gi --timeout 10s",
        TIMED_OUT,
        "lacks memory",
        "PENDING",
    ),
];

#[test]
fn unrunnable_service_shows_reason_and_is_removable() {
    let world = NodeFixture::new();
    let before = world.inventory_at_rest();
    let holder = world.occupy(9000);
    for (name, flags, code, reason, state) in BROKEN {
        let line = format!("service create {name} {flags}");
        let output = world.warren().run_refused(&line.split(' ').collect::<Vec<_>>(), *code);
        assert!(output.contains(reason), "{reason:?} is not in:\n{output}");
        let tasks = task_document::of_service(&world.node, name);
        let is_wanted = |task: &TaskDocument| task.state == *state && task.reason.contains(reason);
        assert!(tasks.iter().any(is_wanted), "{state} for {reason:?} is not in {tasks:#?}");
        let table = world.ok(&format!("service ps {name}"));
        assert!(table.contains(state) && table.contains(reason), "{table}");
        assert!(task_document::pids(&world.node).is_empty(), "nothing of {name} may run");
        if *name == "port" {
            assert!(output.contains(&format!("busybox (pid {})", holder.pid())), "{output}");
        }
    }
    let names = BROKEN.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(" ");
    world.ok(&format!("service rm {names}"));
    drop(holder);
    world.assert_at_rest(&before);
}

#[test]
fn port_of_another_program_degrades_the_network_and_stops_no_task() {
    let world = NodeFixture::new();
    let holder = world.occupy(9000);
    world.ok(&format!("service create web --image {WEB} --publish 9000:80 --publish 9001:80"));
    world.assert_answered_by(ClientLocation::Outside, 9001, &["web-1"]);
    let taken = format!("port 9000/tcp is in use by process busybox (pid {})", holder.pid());
    let expected = ["- network degraded", &taken];
    eventually(SOON, "the condition of the node", || {
        let shown = world.ok(&format!("node inspect {}", world.node.name()));
        if expected.iter().all(|part| shown.contains(part)) { Ok(()) } else { Err(shown) }
    });
    world.ok("service scale web=2");
    world.ok("service rm web");
}

#[test]
fn crashing_container_backs_off_and_is_replaced() {
    let world = NodeFixture::with_box();
    // The reason names an attempt until it starts: after three seconds, and after six.
    world.create_script("loop", &["--restart-delay", "3s", "--restart-max", "2"], "exit 3");
    for attempt in [2, 3] {
        eventually(SOON, &format!("attempt {attempt}"), || {
            let tasks = task_document::of_service(&world.node, "loop");
            let output = format!("exited with code 3; attempt {attempt} starts at ");
            let is_told = |task: &TaskDocument| task.reason.starts_with(&output) && task.attempt == attempt;
            // On a loaded machine the first delay may pass unseen; the second one, which is longer, must not.
            let is_over = |task: &TaskDocument| attempt == 2 && has_begun(task, attempt);
            let is_seen = tasks.first().is_some_and(|task| is_told(task) || is_over(task));
            if is_seen { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    }
    for (failed, delay) in [5.0, 10.0].into_iter().enumerate() {
        let next = eventually(SOON, "a replacement that is held back", || {
            let tasks = task_document::of_service(&world.node, "loop");
            let ended: Vec<&TaskDocument> = tasks.iter().filter(|task| task.state == "FAILED").collect();
            let next = tasks.first().filter(|task| task.not_before.is_some() && task.is_live());
            match (ended.len() > failed, next) {
                (true, Some(next)) => Ok(((*ended[0]).clone(), next.clone())),
                _ => Err(format!("{tasks:#?}")),
            }
        });
        let (ended, next) = next;
        assert!(ended.reason.contains("exited with code 3; 3 attempts in"), "{ended:?}");
        assert!(ended.reason.ends_with("given up"), "{ended:?}");
        assert!(next.id != ended.id && next.slot == ended.slot, "{next:?}");
        assert_eq!(seconds_between(&ended.state_since, next.not_before.as_deref().unwrap()), delay);
    }
    world.ok("service rm loop");
}

/// Whether a task is beyond the delay before `attempt`.
fn has_begun(task: &TaskDocument, attempt: u32) -> bool {
    let being_started = format!("attempt {attempt} is being started");
    let is_this = task.state == "RUNNING" || task.reason.contains(&being_started);
    task.attempt > attempt || (task.attempt == attempt && is_this)
}

/// The seconds between two times of one day, as `2026-11-20T14:18:00.120Z`; the second may be past midnight.
fn seconds_between(earlier: &str, later: &str) -> f64 {
    let seconds = |time: &str| {
        let (_, clock) = time.trim_end_matches('Z').split_once('T').unwrap();
        clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
    };
    let exact: f64 = seconds(later) - seconds(earlier);
    (exact.rem_euclid(86_400.0) * 1000.0).round() / 1000.0
}

#[test]
fn missing_context_error_names_the_fix() {
    let scratch = ScratchDir::new();
    let warren = WarrenCli::new(&scratch.path().join("contexts.toml"));
    let mut command = warren.command(&["service", "ls"]);
    // A manager of this machine must not be found either.
    command.env("WARREN_RUN_DIR", scratch.path());
    let ended = warren_testkit::tool::output(command, Duration::from_secs(30)).unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(USAGE), "{text}");
    assert!(text.contains("there is no cluster context") && text.contains("warren manager init"), "{text}");
}
