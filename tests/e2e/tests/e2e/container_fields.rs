//! The fields of a service as visible in its container.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use warren_testkit::image::TestImage;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON, WEB};
use crate::e2e::privileges::NO_DIRECTORIES;
use crate::e2e::task_document::{self, TaskDocument};
use crate::e2e::traffic::ClientLocation;

/// A script that the container runs with `flags`, and its expected output. [`fill`] replaces `{…}` in both.
struct SpecFieldCase {
    name: &'static str,
    flags: &'static [&'static str],
    script: &'static str,
    prints: &'static str,
}

const fn field(
    name: &'static str,
    flags: &'static [&'static str],
    script: &'static str,
    prints: &'static str,
) -> SpecFieldCase {
    SpecFieldCase { name, flags, script, prints }
}

/// The image for these cases sets every field of the image configuration.
const IMAGE: &str = "warren.local/fields:1";

const FIELDS: &[SpecFieldCase] = &[
    field("env", &["--env", "A=b  c=d", "-e", "EMPTY="], "env | grep -E '^(A|EMPTY)='", "A=b  c=d\nEMPTY="),
    field("env-file", &["--env-file", "{scratch}/env", "-e", "B=flag"], "echo $A $B", "file flag"),
    field("env-of-caller", &["--env", "PATH"], "[ ${#PATH} -gt 4 ] && echo taken", "taken"),
    field("env-of-image", &["-e", "OTHER=service"], "echo $KEPT $OTHER", "image service"),
    field("arguments", &["--arg", "a b", "--arg", "-c"], "printf '%s|' \"$@\"; echo", "a b|-c|"),
    field("host-name", &[], "hostname; cat /etc/hostname; echo $HOSTNAME", "{host}\n{host}\n{host}"),
    field("hosts", &[], "tail -n 1 /etc/hosts", "{address}\t{host}"),
    field("address", &[], "ip -4 -o address show eth0 | grep -o '{address}/32'", "{address}/32"),
    field(
        "resolvers",
        &[],
        "grep -c '^nameserver 127' /etc/resolv.conf; grep -c '^nameserver [1-9]' \
           /etc/resolv.conf | sed 's/[1-3]/some/'",
        "0\nsome",
    ),
    field(
        "cpu-limit",
        &["--cpus", "0.25"],
        "cd /sys/fs/cgroup; cat cpu/cpu.cfs_quota_us 2>/dev/null || \
           cut -d ' ' -f 1 cpu.max",
        "25000",
    ),
    field(
        "memory-limit",
        &["--memory", "64Mi"],
        "cd /sys/fs/cgroup; \
           cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max",
        "67108864",
    ),
    field("user-of-image", &[], "id -u; id -g", "65534\n65534"),
    field("directory-of-image", &[], "pwd", "/tmp"),
    field("own-processes", &[], "ps -o pid | grep -c ' 1$'", "1"),
    field("workdir", &["--workdir", "/made/here"], "pwd", "/made/here"),
    field("user", &["--user", "1234:2345"], "id -u; id -g", "1234\n2345"),
    field("user-by-name", &["--user", "root"], "id -u; id -g; echo $HOME", "0\n0\n/"),
    field("groups", &["--user", "1234:2345", "--group", "77", "--group", "78"], "id -G", "2345 77 78"),
    field(
        "hostname",
        &["--hostname", "db.example"],
        "hostname; cat /etc/hostname; grep -c db.example /etc/hosts",
        "db.example\ndb.example\n1",
    ),
    field("host", &["--host", "db:10.1.2.3"], "grep -w db /etc/hosts", "10.1.2.3\tdb"),
    field("tty", &["--tty"], "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal", "terminal"),
    field("stdin", &["--stdin"], "[ -p /dev/stdin ] && echo pipe", "pipe"),
    field("no-stdin", &[], "cat; echo empty", "empty"),
    field("no-tty", &[], "[ -t 1 ] || echo none", "none"),
    field(
        "init",
        &["--init"],
        "tr '\\0' ' ' </proc/1/cmdline | grep -c init; (sh -c 'exit 0' &); sleep 1; \
           while ps -o stat | grep -q Z; do sleep 0.1; done; echo 0",
        "1\n0",
    ),
    field("read-only", &["--read-only"], "grep -c ' / overlay ro,' /proc/mounts", "1"),
    field("writable", &[], "grep -c ' / overlay rw,' /proc/mounts", "1"),
    field(
        "tmpfs",
        &["--user", "0", "--tmpfs", "/scratch:size=1Mi,mode=0700"],
        "grep ' /scratch tmpfs ' /proc/mounts | grep -o 'noexec\\|size=1024k' | sort; stat -c %a /scratch",
        "noexec\nsize=1024k\n700",
    ),
    field(
        "tmpfs-exec",
        &["--tmpfs", "/scratch:exec"],
        "cp /bin/busybox /scratch/echo && /scratch/echo runs",
        "runs",
    ),
    field(
        "bind",
        &["--bind", "{scratch}/shared:/shared"],
        "cat /shared/file; echo more >/shared/out; cat /shared/out",
        "of the host\nmore",
    ),
    field(
        "bind-read-only",
        &["--bind", "{scratch}/shared:/shared:ro"],
        "cat /shared/file; (echo x >/shared/new) 2>&1 | grep -o 'Read-only'",
        "of the host\nRead-only",
    ),
    field(
        "device",
        &["--user", "0", "--device", "/dev/loop-control:/dev/mine:r"],
        "(exec 3</dev/mine) && echo opened; (exec 3>/dev/mine) 2>/dev/null || echo refused",
        "opened\nrefused",
    ),
    field(
        "cap-drop",
        &["--user", "0", "--cap-drop", "ALL", "--cap-add", "NET_ADMIN"],
        "awk '/^Cap(Bnd|Eff)/ { print $2 }' /proc/self/status",
        "0000000000001000\n0000000000001000",
    ),
    field(
        "cap-add",
        &["--user", "0", "--cap-add", "net_admin"],
        "ip link set eth0 mtu 1300 && cat /sys/class/net/eth0/mtu",
        "1300",
    ),
    field(
        "cap-default",
        &["--user", "0"],
        "ip link set eth0 mtu 1300 2>/dev/null || awk '/^CapBnd/ { print $2 }' /proc/self/status",
        "00000000a80425fb",
    ),
    field(
        "privileged",
        &["--user", "0", "--privileged"],
        "awk '/^(CapBnd|Seccomp:)/ { print $2 }' /proc/self/status; [ -e /dev/kmsg ] && echo devices",
        "{capabilities}\n0\ndevices",
    ),
    field(
        "user-namespace",
        &["--user", "0", "--user-namespace", "private", "--tty", "--cap-add", "NET_ADMIN"],
        "id -u; awk '{ print $1, ($2 >= 1879048192), $3 }' /proc/self/uid_map; stat -c %u /etc/passwd; \
           ip link set eth0 mtu 1300 && cat /sys/class/net/eth0/mtu; [ -t 1 ] && echo terminal",
        "0\n0 1 65536\n0\n1300\nterminal",
    ),
    field("ulimit", &["--ulimit", "nofile=123:456"], "ulimit -n; ulimit -Hn", "123\n456"),
    field("sysctl", &["--sysctl", "net.core.somaxconn=77"], "cat /proc/sys/net/core/somaxconn", "77"),
    field("shm-size", &["--shm-size", "1Mi"], "df -k /dev/shm | awk 'NR == 2 { print $2 }'", "1024"),
    field("oom-score", &["--oom-score-adj", "500"], "cat /proc/self/oom_score_adj", "500"),
    field(
        "pids",
        &["--pids", "33"],
        "cd /sys/fs/cgroup; cat pids/pids.max 2>/dev/null || cat pids.max",
        "33",
    ),
    field("pids-default", &[], "cd /sys/fs/cgroup; cat pids/pids.max 2>/dev/null || cat pids.max", "4096"),
    field(
        "reserve-cpus",
        &["--reserve-cpus", "0.5"],
        "cd /sys/fs/cgroup; cat cpu/cpu.shares 2>/dev/null || (grep -qx 20 cpu.weight && echo 512)",
        "512",
    ),
    field(
        "reserve-memory",
        &["--reserve-memory", "32Mi"],
        "cd /sys/fs/cgroup; cat memory/memory.soft_limit_in_bytes 2>/dev/null || cat memory.low",
        "33554432",
    ),
    field(
        "no-new-privileges",
        &["--no-new-privileges"],
        "awk '/^NoNewPrivs/ { print $2 }' /proc/self/status",
        "1",
    ),
    field("new-privileges", &[], "awk '/^NoNewPrivs/ { print $2 }' /proc/self/status", "0"),
    field("seccomp", &[], "awk '/^Seccomp:/ { print $2 }' /proc/self/status", "2"),
    field(
        "seccomp-profile",
        &["--security-opt", "seccomp={scratch}/strict.json"],
        "mkdir /tmp/made 2>&1 | grep -c 'not permitted'; echo text >/tmp/file && cat /tmp/file",
        "1\ntext",
    ),
    field(
        "seccomp-unconfined",
        &["--seccomp", "unconfined"],
        "awk '/^Seccomp:/ { print $2 }' /proc/self/status",
        "0",
    ),
];

#[test]
fn every_field_reaches_the_container() {
    // The agent raises its own limit.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard - 1, hard).unwrap();
    let mut world = NodeFixture::with_box();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", world.node.process().pid())).unwrap();
    let limits = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let soft = limits.split_whitespace().next().unwrap();
    assert_eq!(soft, hard.to_string(), "{limits}");
    let image = TestImage::busybox(IMAGE).user("nobody").working_directory("/tmp");
    let image = image.environment(["PATH=/bin", "KEPT=image", "OTHER=image"]).entrypoint(["sh", "-c"]);
    world.import("fields.tar", &image.oci_archive());
    std::fs::write(world.node.scratch().join("env"), "# a comment\nA=file\n\nB=file\n").unwrap();
    std::fs::write(world.node.scratch().join("strict.json"), NO_DIRECTORIES).unwrap();
    let shared = world.node.scratch().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    std::fs::write(shared.join("file"), "of the host\n").unwrap();

    for SpecFieldCase { name, flags, script, .. } in FIELDS {
        let scratch = world.node.scratch().display().to_string();
        let flags: Vec<String> = flags.iter().map(|flag| flag.replace("{scratch}", &scratch)).collect();
        // The shell's $0 comes before the arguments of the case.
        let script = format!("trap exit TERM; {}; sleep 1000 & wait", script.replace("{address}", "[0-9.]*"));
        let mut words = vec!["service", "create", name, "--detach", "--image", IMAGE, "--arg", &script];
        words.extend(["--arg", "sh"]);
        words.extend(flags.iter().map(String::as_str));
        world.warren().run_ok(&words);
    }
    for SpecFieldCase { name, prints, .. } in FIELDS {
        let task = world.wait_serving(name, 1).remove(0);
        let expected = prints.replace("{address}", &task.address).replace("{host}", &format!("{name}-1"));
        let expected = expected.replace("{capabilities}", &capabilities());
        eventually(SOON, &format!("the output of {name}"), || {
            let text = task_document::output(&world.node, &task);
            // A terminal ends its lines with both characters.
            let printed = text.replace('\r', "");
            if printed.trim_end() == expected {
                Ok(())
            } else {
                Err(format!("{printed:?} instead of {expected:?}"))
            }
        });
    }
    let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
    world.warren().run_ok(&[&["service", "rm"][..], &names].concat());
}

#[test]
fn container_labels_are_labels_in_containerd() {
    let world = NodeFixture::new();
    let labels = |task: &TaskDocument| {
        let shown = world.node.ctr(["--namespace", "warren", "containers", "info", &task.id]);
        let info: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let all: BTreeMap<String, String> = serde_json::from_value(info["Labels"].clone()).unwrap();
        let of_spec = all.into_iter().filter(|(key, _)| !key.starts_with("warren"));
        of_spec.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
    };
    world.ok(&format!("service create web --image {WEB} --container-label a.b/c=x=y --container-label n=1"));
    let old = world.wait_serving("web", 1).remove(0);
    assert_eq!(labels(&old), ["a.b/c=x=y", "n=1"]);
    world.ok("service update web --container-label n=2 --container-label-rm a.b/c");
    let new = world.wait_serving("web", 1).remove(0);
    assert_ne!(new.id, old.id);
    assert_eq!(labels(&new), ["n=2"]);
    let shown = world.warren().json(&["task", "inspect", &new.id]);
    assert_eq!(shown["spec"]["containerLabels"], serde_json::json!({"n": "2"}));
}

/// Every capability of this machine's kernel, in the format of `/proc`.
fn capabilities() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    line.trim().to_owned()
}

#[test]
fn command_replaces_entrypoint_and_args_follow_dashes() {
    let world = NodeFixture::with_box();
    let image = TestImage::busybox(IMAGE).entrypoint(["echo", "entrypoint"]).arguments(["cmd"]);
    world.import("fields.tar", &image.oci_archive());
    let cases: [(&str, &[&str], &str); 4] = [
        ("image", &[], "entrypoint cmd"),
        ("arguments", &["--", "-x", "y z"], "entrypoint -x y z"),
        ("command", &["--command", "echo", "--command", "own"], "own"),
        ("both", &["--entrypoint", "echo", "--arg", "-o", "--", "json"], "2"),
    ];
    for (name, flags, prints) in cases {
        let words = [&["service", "create", name, "--detach", "--image", IMAGE][..], flags].concat();
        if prints == "2" {
            world.warren().run_refused(&words, 2);
            continue;
        }
        world.warren().run_ok(&words);
        // It prints and exits: the output is in its log as long as its task exists.
        eventually(SOON, &format!("the output of {name}"), || {
            let tasks = task_document::of_service(&world.node, name);
            let text = tasks.iter().map(|task| task_document::output(&world.node, task)).collect::<Vec<_>>();
            let is_wanted = |printed: &String| printed.lines().next() == Some(prints);
            if text.iter().any(is_wanted) { Ok(()) } else { Err(format!("{text:?}")) }
        });
    }
}

#[test]
fn drain_delay_and_stop_grace_are_kept() {
    let world = NodeFixture::with_box();
    let hold = "sleep 1000 & wait; sleep 1000";
    let deaf = ["--drain-delay", "0s", "--stop-grace", "3s"];
    let polite = ["--drain-delay", "4s", "--stop-grace", "60s"];
    let ignore = format!("trap '' TERM; echo up; {hold}");
    world.create_script("deaf", &deaf, &ignore);
    world.create_script("polite", &polite, &format!("trap exit TERM; echo up; {hold}"));
    let usual = ["service", "create", "usual", "--image", BOX, "--update-monitor", "0s"];
    let command = ["--command", "sh", "--arg", "-c", "--arg", &ignore];
    world.warren().settling().run_ok(&[&usual[..], &command].concat());
    for name in ["deaf", "polite", "usual"] {
        let task = world.wait_serving(name, 1).remove(0);
        eventually(SOON, "its trap", || {
            let text = task_document::output(&world.node, &task);
            if text == "up\n" { Ok(()) } else { Err(text) }
        });
    }
    // All of them at the same time.
    let ended_after = ["polite", "deaf", "usual"].map(|name| {
        let warren = world.warren();
        std::thread::spawn(move || {
            let begin = Instant::now();
            warren.run_ok(&["service", "rm", name]);
            begin.elapsed()
        })
    });
    let [polite, deaf, usual] = ended_after.map(|removal| removal.join().unwrap());
    assert!(
        polite >= Duration::from_secs(4),
        "asked to end after {polite:?}, before its drain delay was over"
    );
    assert!(polite < Duration::from_secs(50), "a process that ends when asked was given {polite:?}");
    assert!(deaf >= Duration::from_secs(3), "killed after {deaf:?}, before its grace was over");
    assert!(deaf < Duration::from_secs(45), "killed only after {deaf:?}");
    assert!(usual >= Duration::from_secs(12), "a drain delay of 2 s and a grace of 10 s took {usual:?}");
}

#[test]
fn a_port_on_one_address_is_open_there_only() {
    let world = NodeFixture::new();
    let own = world.node.host().address();
    world
        .ok(&format!("service create web --image {WEB} --publish 127.0.0.1:8081:80 --publish {own}:8082:80"));
    world.assert_answered_by(ClientLocation::Loopback, 8081, &["web-1"]);
    world.assert_refused(ClientLocation::OwnAddress, 8081);
    world.assert_refused(ClientLocation::Outside, 8081);
    world.assert_answered_by(ClientLocation::OwnAddress, 8082, &["web-1"]);
    world.assert_answered_by(ClientLocation::Outside, 8082, &["web-1"]);
    world.assert_refused(ClientLocation::Loopback, 8082);
}
