//! `warren task cp` between the node's host and real containers.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::exec::anonymous_memory;
use crate::e2e::fixture::{NodeFixture, SOON};

const FAILED: i32 = 1;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
/// What the node may take more while it passes 200 MiB on.
const MAX_GROWTH: u64 = 32 << 20;

fn running(flags: &[&str]) -> NodeFixture {
    let world = NodeFixture::with_box();
    world.create_script("web", flags, "exec sleep 100000");
    world.wait_serving("web", 1);
    world
}

impl NodeFixture {
    /// Runs a shell script in `web.1`.
    fn shell(&self, script: &str) -> String {
        self.warren().run_ok(&["task", "exec", "web.1", "sh", "-c", script])
    }

    fn cp(&self, from: &str, to: &str) -> String {
        self.warren().run_ok(&["task", "cp", from, to])
    }

    fn cp_refused(&self, from: &str, to: &str, code: i32, words: &str) {
        let printed = self.warren().run_refused(&["task", "cp", from, to], code);
        assert!(printed.contains(words), "{from} to {to}: {printed}");
    }
}

/// Type, mode, owner, time, link target and content of everything in a directory.
fn listing(dir: &Path) -> String {
    let script =
        "find . -printf '%P %y %m %U:%G %n %Ts %l\\n' | sort; find . -type f -exec md5sum {} + | sort";
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir);
    tool::stdout(command, tool::DEADLINE).unwrap()
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("empty")).unwrap();
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    let write = |name: &str, content: &str, mode, owner| {
        let path = root.join(name);
        fs::write(&path, content).unwrap();
        chown(&path, Some(owner), Some(owner + 1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write("sub/a", "a", 0o640, 1000);
    write("sub/deep/tool", "#!/bin/sh", 0o4755, 0);
    write(&"n".repeat(200), "long name", 0o600, 7);
    write("käse", "", 0o444, 0);
    fs::hard_link(root.join("sub/a"), root.join("linked")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    symlink("sub/../nowhere", root.join("dangling")).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1700)).unwrap();
    fs::set_permissions(root.join("sub"), fs::Permissions::from_mode(0o500)).unwrap();
}

#[test]
fn trees_pass_both_ways_unchanged() {
    let world = running(&[]);
    let scratch = world.node.scratch().join("copies");
    let (source, back) = (scratch.join("source"), scratch.join("back"));
    tree(&source);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let before = listing(&source);
    world.cp(&text(&source), "web.1:/tmp/new");
    world.cp("web.1:/tmp/new", &text(&back));
    assert_eq!(listing(&back), before);
    assert_eq!(world.shell("stat -c '%a %u:%g %h' /tmp/new/sub/a; readlink /tmp/new/absolute"), {
        "640 1000:1001 2\n/etc/passwd\n"
    });
    // Into an existing directory: under its name, or its content.
    world.cp(&text(&source), "web.1:/tmp/new");
    world.cp(&format!("{}/.", text(&source)), "web.1:/tmp/content");
    world.cp(&format!("{}/.", text(&source)), "web.1:/tmp/content");
    assert_eq!(world.shell("ls /tmp/new/source /tmp/content | grep -c sub; cat /tmp/content/linked"), "2\na");
    world.cp("web.1:/tmp/content/.", &text(&back));
    assert_eq!(listing(&back).lines().count(), before.lines().count());

    // One file: a new name, another file, a directory.
    world.shell("mkdir /tmp/d; echo old > /tmp/old; ln -s /tmp/d /tmp/link");
    let file = text(&source.join("sub/a"));
    for to in ["/tmp/b", "/tmp/old", "/tmp/d", "/tmp/d/", "tmp/link/c"] {
        world.cp(&file, &format!("web.1:{to}"));
    }
    assert_eq!(world.shell("cat /tmp/b /tmp/old /tmp/d/a /tmp/d/c"), "aaaa");
    for (from, to, code, words) in [
        (file.as_str(), "web.1:/nosuch/x", NOT_FOUND, "/nosuch does not exist"),
        (&file, "web.1:/tmp/nosuch/", NOT_FOUND, "/tmp/nosuch/ does not exist"),
        (&text(&source), "web.1:/tmp/b", CONFLICT, "/tmp/b is not a directory"),
        (&file, "web.1:/tmp/b/", CONFLICT, "/tmp/b/ is not a directory"),
        ("/nosuch", "web.1:/tmp", NOT_FOUND, "/nosuch does not exist"),
        ("web.1:/nosuch", "/tmp", NOT_FOUND, "/nosuch does not exist"),
        ("web.2:/etc", "/tmp", NOT_FOUND, "task \"web.2\" does not exist"),
        ("web.1:/dev/null", &text(&scratch), CONFLICT, "/dev/null is a device"),
        ("web.1:/proc/version", &text(&scratch), CONFLICT, "is a file of the kernel"),
        ("/dev/null", "web.1:/tmp", CONFLICT, "/dev/null is a device"),
        (&file, "web.1:/proc/x", NOT_FOUND, "/proc/x does not exist"),
        ("web.1:/a", "web.1:/b", 2, "both are in containers"),
        ("/a", "/b", 2, "neither is in a container"),
    ] {
        world.cp_refused(from, to, code, words);
    }
    let left_out = world.warren().run(&["task", "cp", "web.1:/dev", &text(&scratch)]);
    assert_eq!(left_out.code, FAILED, "{left_out}");
    assert!(left_out.stderr.contains("not copied: /dev/null is a device"), "{left_out}");
    assert!(scratch.join("dev").is_dir());
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 3, "no part of a file is left");
}

#[test]
fn archives_pass_and_no_path_leads_out() {
    let world = running(&[]);
    let scratch = world.node.scratch().join("copies");
    fs::create_dir_all(&scratch).unwrap();
    let text = |name: &str| scratch.join(name).to_str().unwrap().to_owned();
    // A file of this name exists on the node as well.
    let (outside, name) = (scratch.join("inside"), text("inside"));
    fs::write(&outside, "of the node").unwrap();
    world.shell(&format!(
        "mkdir -p {dir}; echo -n ours > {name}; cd /tmp; ln -s {name} absolute; ln -s {dir} dir; \
         ln -s ../../../../../../../../..{name} dots; ln -s /proc/1/root magic",
        dir = scratch.display()
    ));
    let got = text("got");
    for path in ["/tmp/absolute", "/tmp/dots", "/tmp/dir/inside", &format!("/tmp/../../..{name}")] {
        world.warren().run_ok(&["task", "cp", "-L", &format!("web.1:{path}"), &got]);
        assert_eq!(fs::read_to_string(&got).unwrap(), "ours", "{path}");
        fs::remove_file(&got).unwrap();
    }
    world.cp("web.1:/tmp/absolute", &got);
    assert!(fs::symlink_metadata(&got).unwrap().is_symlink());
    fs::remove_file(&got).unwrap();
    world.cp_refused(&format!("web.1:/tmp/magic{name}"), &got, FAILED, "symbolic links");
    fs::write(text("new"), "new").unwrap();
    world.cp(&text("new"), "web.1:/tmp/dir/inside");
    assert_eq!(world.shell(&format!("cat {name}")), "new");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "of the node");

    let archive = |words: &[&str]| {
        let mut command = Command::new("tar");
        command.args(["-C", "/", "-cPf", "-"]).args(words);
        command.output().unwrap().stdout
    };
    let send = |archive: &[u8], to: &str| {
        let mut command = world.warren().command(&["task", "cp", "-", to]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may be refused before it is read.
        let _ = child.stdin.take().unwrap().write_all(archive);
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    world.shell("mkdir /tmp/from");
    assert_eq!(send(&archive(&[&name]), "web.1:/tmp/from"), (0, String::new()));
    assert_eq!(world.shell(&format!("cat /tmp/from{name}")), "of the node");
    for (archive, to, code, words) in [
        (archive(&["--transform=s,^,../,", &name]), "web.1:/tmp/from", CONFLICT, "leads out of the archive"),
        (archive(&["/dev/null"]), "web.1:/tmp/from", CONFLICT, "dev/null is a device"),
        (archive(&["--transform=s,.*,absolute/x,", &name]), "web.1:/tmp", CONFLICT, "/tmp/absolute is"),
        (archive(&["--transform=s,.*,dir/x,", &name]), "web.1:/tmp", CONFLICT, "is a link"),
        (archive(&[&name]), "web.1:/nosuch", NOT_FOUND, "/nosuch does not exist"),
        (b"no archive".to_vec(), "web.1:/tmp", FAILED, "incomplete or invalid"),
        (archive(&[&name])[..520].to_vec(), "web.1:/tmp/from", FAILED, "incomplete or invalid"),
    ] {
        let (found, printed) = send(&archive, to);
        assert_eq!(found, code, "{words}: {printed}");
        assert!(printed.contains(words), "{printed}");
    }
    assert_eq!(world.shell("ls -A /tmp/from | grep -c warren; true"), "0\n");
    let mut command = world.warren().command(&["task", "cp", "web.1:/tmp/from", "-"]);
    let mut list = Command::new("tar");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    list.args(["-tf", "-"]).stdin(child.stdout.take().unwrap());
    let names = String::from_utf8(list.output().unwrap().stdout).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(names.starts_with("from/\n") && names.ends_with("/inside\n"), "{names}");
}

#[test]
fn full_disk_and_lost_client_leave_no_part_and_memory_stays_flat() {
    let mut world = running(&["--tmpfs", "/small:size=8Mi", "--tmpfs", "/large:size=300Mi", "--read-only"]);
    let scratch = world.node.scratch().join("copies");
    fs::create_dir_all(&scratch).unwrap();
    let big = scratch.join("big");
    let file = fs::File::create(&big).unwrap();
    file.set_len(200 << 20).unwrap();
    let big = big.to_str().unwrap();
    world.cp_refused(big, "web.1:/small", FAILED, "cannot write /small/big: No space left on device");
    assert_eq!(world.shell("ls -A /small | wc -l"), "0\n");
    world.cp_refused(big, "web.1:/etc", FAILED, "Read-only file system");

    let pid = world.node.process().pid();
    let before = anonymous_memory(pid);
    world.cp(big, "web.1:/large");
    let grown = anonymous_memory(pid).saturating_sub(before);
    assert!(grown < MAX_GROWTH, "{grown} bytes to the container");
    world.cp("web.1:/large/big", scratch.join("back").to_str().unwrap());
    let grown = anonymous_memory(pid).saturating_sub(before);
    assert!(grown < MAX_GROWTH, "{grown} bytes from the container");
    world.shell("rm /large/big");

    let mut part = Command::new("sh");
    part.args(["-c", "tar -cf - big | head -c 1000000"]).current_dir(&scratch);
    let part = part.output().unwrap().stdout;
    assert_eq!(part.len(), 1_000_000);
    for kill_agent in [false, true] {
        let mut command = world.warren().command(&["task", "cp", "-", "web.1:/large"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // The rest of the archive never comes: the copy does not end by itself.
        let mut input = child.stdin.take().unwrap();
        input.write_all(&part).unwrap();
        eventually(SOON, "the copy begins", || {
            let names = world.shell("ls -A /large");
            if names.contains(".warren-cp") { Ok(()) } else { Err(names) }
        });
        if kill_agent {
            world.node.kill();
            assert_eq!(child.wait().unwrap().code(), Some(5));
            world.node.run_again();
            world.node.wait_ready();
            return;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        eventually(SOON, "the part is removed", || {
            let names = world.shell("ls -A /large");
            if names.is_empty() { Ok(()) } else { Err(names) }
        });
    }
}
