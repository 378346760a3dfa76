//! What nobody wants any more is removed while the node runs, not only when it starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use warren_testkit::leftovers;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::world::{WEB, World};

/// The node looks every quarter of a minute, and a second time some seconds later.
const SWEPT: Duration = Duration::from_secs(40);
/// Shown by containerd in no list.
const FORGOTTEN: &str = "forgotten";

/// Starts a supervisor as containerd does, which then knows nothing of it: so it is when containerd is killed
/// while it makes a process. Returns the supervisor's socket.
#[track_caller]
fn forget_a_supervisor(world: &World) -> PathBuf {
    let bundle = world.node.scratch().join(FORGOTTEN);
    std::fs::create_dir(&bundle).unwrap();
    std::fs::write(bundle.join("config.json"), "{}").unwrap();
    mkfifo(&bundle.join("log"), Mode::S_IRWXU).unwrap();
    let socket = world.node.containerd_socket();
    let mut start = world.node.host().command("containerd-shim-runc-v2");
    start.args(["-namespace", "warren", "-id", FORGOTTEN, "-address"]).arg(&socket).arg("start");
    start.env("TTRPC_ADDRESS", socket.with_extension("sock.ttrpc")).current_dir(&bundle);
    let address = tool::stdout(start, tool::DEADLINE).unwrap_or_else(|error| panic!("{error}"));
    PathBuf::from(address.trim().strip_prefix("unix://").expect("it says where it listens"))
}

fn supervisor(of: &str, scratch: &Path) -> Option<Pid> {
    let mark = format!(" -id {of} ");
    let all = leftovers::processes(scratch);
    all.iter().find(|process| process.command.contains(&mark)).map(|process| Pid::from_raw(process.pid))
}

#[test]
fn a_supervisor_that_containerd_forgot_is_removed_while_the_node_runs() {
    let world = World::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2"));
    let running = task::pids(&world.node);
    assert_eq!(running.len(), 2);
    let socket = forget_a_supervisor(&world);
    assert!(supervisor(FORGOTTEN, world.node.scratch()).is_some() && socket.exists());
    eventually(SWEPT, "the end of the forgotten supervisor and its socket", || {
        match (supervisor(FORGOTTEN, world.node.scratch()), socket.exists()) {
            (None, false) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    });
    assert_eq!(task::pids(&world.node), running, "nothing else is touched");
    assert!(running.keys().all(|id| supervisor(id, world.node.scratch()).is_some()));
}
