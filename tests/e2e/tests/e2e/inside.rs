//! The fields of a service as its container meets them.

use std::time::{Duration, Instant};

use warren_testkit::image::Image;
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::traffic::Way;
use crate::e2e::world::{SOON, WEB, World};

/// A script that the container runs with `flags`, and what it must print. `{…}` in both is filled in by
/// [`fill`].
struct Field {
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
) -> Field {
    Field { name, flags, script, prints }
}

/// The image that the fields are seen in says all that an image can say.
const IMAGE: &str = "warren.local/wishes:1";

const FIELDS: [Field; 14] = [
    field("env", &["--env", "A=b  c=d", "-e", "EMPTY="], "env | grep -E '^(A|EMPTY)='", "A=b  c=d\nEMPTY="),
    field("env-file", &["--env-file", "{scratch}/env", "-e", "B=flag"], "echo $A $B", "file flag"),
    field("env-of-caller", &["--env", "PATH"], "[ ${#PATH} -gt 4 ] && echo taken", "taken"),
    field("env-of-image", &["-e", "OTHER=service"], "echo $KEPT $OTHER", "image service"),
    field("arguments", &["--arg", "a b", "--arg", "-c"], "printf '%s|' \"$@\"", "a b|-c|"),
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
];

#[test]
fn every_field_reaches_the_container() {
    let world = World::new();
    let image = Image::busybox(IMAGE).user("nobody").working_directory("/tmp");
    let image = image.environment(["PATH=/bin", "KEPT=image", "OTHER=image"]).entrypoint(["sh", "-c"]);
    world.import("wishes.tar", &image.oci_archive());
    std::fs::write(world.node.scratch().join("env"), "# a comment\nA=file\n\nB=file\n").unwrap();

    for Field { name, flags, script, .. } in &FIELDS {
        let scratch = world.node.scratch().display().to_string();
        let flags: Vec<String> = flags.iter().map(|flag| flag.replace("{scratch}", &scratch)).collect();
        // The shell's $0 comes before the arguments of the case.
        let script = format!("trap exit TERM; {}; sleep 1000 & wait", script.replace("{address}", "[0-9.]*"));
        let mut words = vec!["service", "create", name, "--detach", "--image", IMAGE, "--arg", &script];
        words.extend(["--arg", "sh"]);
        words.extend(flags.iter().map(String::as_str));
        world.warren().ok(&words);
    }
    for Field { name, prints, .. } in &FIELDS {
        let task = world.serving(name, 1).remove(0);
        let wanted = prints.replace("{address}", &task.address).replace("{host}", &format!("{name}-1"));
        eventually(SOON, &format!("the words of {name}"), || {
            let said = task::output(&world.node, &task);
            if said.trim_end() == wanted { Ok(()) } else { Err(format!("{said:?} instead of {wanted:?}")) }
        });
    }
    let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
    world.warren().ok(&[&["service", "rm"][..], &names].concat());
}

#[test]
fn a_command_replaces_the_entrypoint_and_words_after_dashes_are_arguments() {
    let world = World::new();
    let image = Image::busybox(IMAGE).entrypoint(["echo", "entrypoint"]).arguments(["cmd"]);
    world.import("wishes.tar", &image.oci_archive());
    let cases: [(&str, &[&str], &str); 4] = [
        ("image", &[], "entrypoint cmd"),
        ("arguments", &["--", "-x", "y z"], "entrypoint -x y z"),
        ("command", &["--command", "echo", "--command", "own"], "own"),
        ("both", &["--entrypoint", "echo", "--arg", "-o", "--", "json"], "2"),
    ];
    for (name, flags, prints) in cases {
        let words = [&["service", "create", name, "--detach", "--image", IMAGE][..], flags].concat();
        if prints == "2" {
            world.warren().refused(&words, 2);
            continue;
        }
        world.warren().ok(&words);
        // It prints and ends: the words are in its log as long as its task is.
        eventually(SOON, &format!("the words of {name}"), || {
            let tasks = task::of_service(&world.node, name);
            let said = tasks.iter().map(|task| task::output(&world.node, task)).collect::<Vec<_>>();
            let is_wanted = |said: &String| said.lines().next() == Some(prints);
            if said.iter().any(is_wanted) { Ok(()) } else { Err(format!("{said:?}")) }
        });
    }
}

#[test]
fn the_grace_is_given_and_no_more() {
    let world = World::new();
    let hold = "sleep 1000 & wait; sleep 1000";
    world.create_script("deaf", &["--stop-grace", "3s"], &format!("trap '' TERM; echo up; {hold}"));
    world.create_script("polite", &["--stop-grace", "60s"], &format!("trap exit TERM; echo up; {hold}"));
    for name in ["deaf", "polite"] {
        let task = world.serving(name, 1).remove(0);
        eventually(SOON, "its trap", || {
            let said = task::output(&world.node, &task);
            if said == "up\n" { Ok(()) } else { Err(said) }
        });
    }
    let ended_after = |name: &str| {
        let begin = Instant::now();
        world.ok(&format!("service rm {name}"));
        begin.elapsed()
    };
    let (polite, deaf) = (ended_after("polite"), ended_after("deaf"));
    assert!(polite < Duration::from_secs(10), "a process that ends when asked was given {polite:?}");
    assert!(deaf >= Duration::from_secs(3), "killed after {deaf:?}, before its grace was over");
    assert!(deaf < Duration::from_secs(13), "killed only after {deaf:?}");
}

#[test]
fn a_port_on_one_address_is_open_there_only() {
    let world = World::new();
    let own = world.node.host().address();
    world
        .ok(&format!("service create web --image {WEB} --publish 127.0.0.1:8081:80 --publish {own}:8082:80"));
    world.assert_answered_by(Way::Loopback, 8081, &["web-1"]);
    world.assert_refused(Way::OwnAddress, 8081);
    world.assert_refused(Way::Outside, 8081);
    world.assert_answered_by(Way::OwnAddress, 8082, &["web-1"]);
    world.assert_answered_by(Way::Outside, 8082, &["web-1"]);
    world.assert_refused(Way::Loopback, 8082);
}
