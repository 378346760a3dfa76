//! Missing requirements are reported before anything is changed. Each case is a separate process, because
//! user, PATH and mounts belong to a process.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use warren_network::NetworkBackend;

use crate::lab::{assert_same, run_on_node};

/// Set for a process that only checks and prints what is missing.
const CHECK: &str = "WARREN_NETWORK_TEST_CHECK";

#[test]
fn check_changes_nothing() {
    if std::env::var_os(CHECK).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let missing = runtime
            .block_on(crate::lab::linux_network(std::path::Path::new("/nonexistent")).check())
            .unwrap_err();
        return println!("<{missing}>");
    }
    run_on_node(|lab| async move {
        // A new namespace inherits the machine's setting, which may be on already.
        lab.node.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap());
        let before = lab.inventory();
        lab.network.check().await.unwrap();
        lab.network.check().await.unwrap();
        assert_same(&lab.inventory(), &before, "after a check");
        let forwarding = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(lab.node.run(forwarding).trim(), "0");
    });
}

/// Runs the check in its own namespace and returns what is missing.
fn missing(prepare: impl FnOnce(&mut Command)) -> String {
    let check = "check_changes_nothing";
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--net", "--mount", "sh", "-c", "eval \"$PREPARE\"; exec \"$@\"", "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("preconditions::{check}"), "--nocapture"]).env(CHECK, "1");
    prepare(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report = text.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    report.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr))).0.to_owned()
}

/// Writes a program that prints a line and exits with a status.
fn program(directory: &Path, name: &str, line: &str, status: i32) {
    let text = directory.join(format!("{name}.text"));
    std::fs::write(&text, format!("#!/bin/sh\necho '{line}'\nexit {status}\n")).unwrap();
    install(&text, &directory.join(name));
}

/// Makes `path` an executable copy of `source`. Another process copies it: a descriptor open for writing
/// here would be inherited by a child of another test, and the copy would be busy.
fn install(source: &Path, path: &Path) {
    assert!(Command::new("install").args(["-m", "755"]).arg(source).arg(path).status().unwrap().success());
}

#[test]
fn non_root_is_refused() {
    // The test binary may be in a directory that only root can read.
    let copy =
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let path = copy.path().join("check");
    install(&std::env::current_exe().unwrap(), &path);
    let output = Command::new(&path)
        .args(["--exact", "preconditions::check_changes_nothing", "--nocapture"])
        .env(CHECK, "1")
        .uid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("container networks need root, but this process runs as uid 65534"), "{text}");
}

#[test]
fn missing_and_old_programs_are_named() {
    let path = tempfile::tempdir().unwrap();
    let with_path = |command: &mut Command| {
        let path = path.path().display().to_string();
        command.env("PREPARE", format!("export PATH={path}"));
    };
    let report = missing(with_path);
    assert!(
        report.contains("\"iptables\" was not found") && report.contains("apt-get install iptables"),
        "{report}"
    );
    program(path.path(), "iptables", "iptables v1.4.21", 0);
    let report = missing(with_path);
    assert!(report.contains("iptables 1.6.2 or newer is needed, found \"iptables v1.4.21\""), "{report}");
    program(path.path(), "iptables", "iptables v1.8.9", 0);
    let report = missing(with_path);
    assert!(report.contains("\"iptables-restore\" was not found"), "{report}");
    for name in ["iptables-restore", "iptables-save"] {
        program(path.path(), name, "", 0);
    }
    let report = missing(with_path);
    assert!(
        report.contains("\"nft\" was not found") && report.contains("apt-get install nftables"),
        "{report}"
    );
    program(path.path(), "iptables", "iptables v1.8.9", 1);
    let report = missing(with_path);
    assert!(report.contains("`iptables --version` failed"), "{report}");
}

#[test]
fn settings_that_cannot_be_written_are_named() {
    let report = missing(|command| {
        let off = "echo 0 >/proc/sys/net/ipv4/ip_forward";
        let locked = "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys";
        command.env("PREPARE", format!("{off}; {locked}"));
    });
    assert!(report.contains("cannot set sysctl net.ipv4.ip_forward to 1"), "{report}");
}
