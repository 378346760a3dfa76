//! Orphaned resources are removed while the node runs, not only at its start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use warren_testkit::cleanup;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, WEB};
use crate::e2e::task_document;

/// The node checks every quarter of a minute, and confirms some seconds later.
const SWEPT: Duration = Duration::from_secs(40);
/// Not in any list of containerd.
const FORGOTTEN: &str = "forgotten";

/// Starts a shim as containerd does, without a record in containerd: the same as after a kill of containerd
/// during the creation of a process. Returns the shim's socket.
#[track_caller]
fn forget_a_supervisor(world: &NodeFixture) -> PathBuf {
    let bundle = world.node.scratch().join(FORGOTTEN);
    std::fs::create_dir(&bundle).unwrap();
    std::fs::write(bundle.join("config.json"), "{}").unwrap();
    mkfifo(&bundle.join("log"), Mode::S_IRWXU).unwrap();
    let socket = world.node.containerd_socket();
    let mut start = world.node.host().command("containerd-shim-runc-v2");
    start.args(["-namespace", "warren", "-id", FORGOTTEN, "-address"]).arg(&socket).arg("start");
    start.env("TTRPC_ADDRESS", socket.with_extension("sock.ttrpc")).current_dir(&bundle);
    let address = tool::stdout(start, tool::DEADLINE).unwrap_or_else(|error| panic!("{error}"));
    PathBuf::from(address.trim().strip_prefix("unix://").expect("the shim prints its socket"))
}

fn supervisor(of: &str, scratch: &Path) -> Option<Pid> {
    let mark = format!(" -id {of} ");
    let all = cleanup::processes(scratch);
    all.iter().find(|process| process.command.contains(&mark)).map(|process| Pid::from_raw(process.pid))
}

#[test]
fn forgotten_supervisor_is_removed_at_runtime() {
    let world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2"));
    let running = task_document::pids(&world.node);
    assert_eq!(running.len(), 2);
    let socket = forget_a_supervisor(&world);
    assert!(supervisor(FORGOTTEN, world.node.scratch()).is_some() && socket.exists());
    eventually(SWEPT, "the end of the forgotten supervisor and its socket", || {
        match (supervisor(FORGOTTEN, world.node.scratch()), socket.exists()) {
            (None, false) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    });
    assert_eq!(task_document::pids(&world.node), running, "nothing else is touched");
    assert!(running.keys().all(|id| supervisor(id, world.node.scratch()).is_some()));
}
