//! The script of `make run` and `make stop`, each twice, on a lab host and with the executables of this
//! build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use warren_testkit::cleanup;
use warren_testkit::cli::{WarrenCli, binary};
use warren_testkit::leaks::{Inventory, LeakScope};
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::tool;

/// The deadline for a node, an image and a service on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

#[test]
fn the_demo_runs_and_stops_twice() {
    let lab = NetworkSwitch::new();
    let (host, scratch) = (lab.add_host(), ScratchDir::new());
    let directory = scratch.path().join("run");
    let demo = |verb: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo/demo.sh");
        let mut command = host.command(script);
        command.arg(verb).env("WARREN_RUN", &directory).env("DEMO_PORT", "8088");
        command.env("WARREN_PROGRAMS", binary().parent().unwrap());
        let ended = tool::output(command, DEADLINE).unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert!(ended.status.success(), "demo.sh {verb}:\n{text}");
        text
    };
    let site = LeakScope {
        netns: &host.netns().path(),
        containerd_socket: &directory.join("node/containerd/containerd.sock"),
        directory: scratch.path(),
        cgroup_pattern: "warren-demo",
    };
    let before = Inventory::of_kernel(&site);
    for _ in 0..2 {
        // Each verb is harmless the second time.
        for _ in 0..2 {
            let text = demo("run");
            assert!(text.contains("host name: demo-") && text.contains("make stop"), "{text}");
        }
        let warren = WarrenCli::new(&directory.join("contexts.toml")).in_netns(&host.netns().path());
        let node = warren.json(&["node", "ls"])[0]["id"].as_str().unwrap().to_owned();
        assert!(!cleanup::cgroups(&node).is_empty());
        let mut curl: Command = host.command("curl");
        curl.args(["--silent", "--fail", "--max-time", "5", "http://127.0.0.1:8088/healthz"]);
        assert_eq!(tool::stdout(curl, tool::DEADLINE).unwrap(), "ok\n");
        for _ in 0..2 {
            demo("stop");
        }
        assert!(!directory.exists());
        assert_eq!(cleanup::processes(scratch.path()), []);
        assert_eq!(cleanup::cgroups(&node), Vec::<PathBuf>::new());
        let difference = before.difference(&Inventory::of_kernel(&site));
        assert!(difference.is_empty(), "{difference}");
    }
}
