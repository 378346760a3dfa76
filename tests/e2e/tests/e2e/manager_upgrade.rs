//! The upgrade of three managers, one after the other, while clients write: each runs the new program at the end, no
//! acknowledged write is lost, and no container is disturbed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use warren_test_history::workload::{AdminAccess, RegisterWorkload, RegisterWorkloadConfig};
use warren_test_history::{LinearizabilityVerdict, SearchLimit, check};
use warren_testkit::cli::binary;
use warren_testkit::node::NodeOptions;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;
use warren_testkit::{soak, tool};

use crate::e2e::fixture::SOON;
use crate::e2e::three_managers::ThreeManagers;

/// Writes must be acknowledged again within this time on any busy machine.
const RESUMED: Duration = Duration::from_secs(30);
/// Limit for each machine.
const TIMEOUT: &str = "2m";
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// Copies of the program of this build, one for each node.
struct Programs(ScratchDir);

impl Programs {
    #[track_caller]
    fn new() -> Programs {
        let programs = Programs(ScratchDir::new());
        for name in NAMES {
            // Another process does the copy, see `scratch::install`.
            let mut install = Command::new("install");
            install.args(["-D", "-m", "755"]).arg(binary()).arg(programs.of(name));
            tool::stdout(install, tool::DEADLINE).unwrap();
        }
        programs
    }

    fn of(&self, name: &str) -> PathBuf {
        self.0.path().join(name).join("warren")
    }

    /// Writes a file that is not run from here.
    #[track_caller]
    fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What is beside the program of a node.
    #[track_caller]
    fn files_of(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path().join(name)).unwrap();
        let mut files: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }
}

#[track_caller]
fn digest(path: &Path) -> String {
    let mut sum = Command::new("sha256sum");
    sum.arg(path);
    let text = tool::stdout(sum, tool::DEADLINE).unwrap();
    format!("sha256:{}", text.split(' ').next().unwrap_or_default())
}

/// The digests of the programs that the nodes execute.
#[track_caller]
fn executed(trio: &mut ThreeManagers) -> Vec<String> {
    let pids: Vec<i32> = trio.nodes.iter_mut().map(|node| node.process().pid()).collect();
    pids.iter().map(|pid| digest(Path::new(&format!("/proc/{pid}/exe")))).collect()
}

#[test]
fn three_managers_are_upgraded_under_load() {
    let programs = Programs::new();
    let mut trio = ThreeManagers::with(|name| NodeOptions::default().program(&programs.of(name)));
    trio.create_service(&["--replace-after", "10m", "--pull", "never"]);
    let clients = trio.lab.add_host();
    let plan = RegisterWorkloadConfig {
        managers: trio.addresses(),
        registers: 4,
        clients: 6,
        pause: Duration::from_millis(soak::count(50, 10) as u64),
        netns: Some(clients.netns().path()),
        seed: 1,
    };
    let contexts = trio.nodes[0].scratch().join("contexts.toml");
    let registers = RegisterWorkload::start(AdminAccess::of_contexts(&contexts), plan);
    let warren = trio.nodes[0].warren();
    let (before, old) = (trio.pids(None), digest(&binary()));

    let text = programs.write("text", b"#!/bin/sh\n# This is not the program of a node.\nexit 0\n");
    let refused = warren.run_refused(&["upgrade", &text], 2);
    assert!(refused.contains("is not an executable"), "{refused}");

    // Not the leader: it is upgraded last.
    let failing = programs.write("failing", &std::fs::read("/bin/false").unwrap());
    let leader = NAMES[trio.wait_all_voters()];
    let refused = warren.run_refused(&["upgrade", &failing, "--timeout", TIMEOUT], 4);
    assert!(refused.contains("the upgrade stopped at "), "{refused}");
    // Another one may lead on a loaded machine.
    if NAMES[trio.wait_all_voters()] == leader {
        let first = *NAMES.iter().find(|name| **name != leader).unwrap();
        assert!(refused.contains(&format!("the upgrade stopped at {first}")), "{refused}");
    }
    assert!(
        refused.contains("it ended with exit status: 1") && refused.contains("not changed: "),
        "{refused}"
    );
    assert_eq!(executed(&mut trio), [&*old, &old, &old]);
    for name in NAMES {
        assert_eq!(
            (programs.files_of(name), digest(&programs.of(name))),
            (vec!["warren".to_owned()], old.clone())
        );
    }

    let mut program = std::fs::read(binary()).unwrap();
    program.extend_from_slice(b"the next version");
    let file = programs.write("next", &program);
    let new = digest(Path::new(&file));
    registers.watch();
    let ran = warren.run(&["upgrade", &file, "--timeout", TIMEOUT]);
    assert_eq!(ran.code, 0, "{ran}");
    let upgraded: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(upgraded.len(), 3, "{ran}");
    registers.wait_for_write(Instant::now(), RESUMED);
    println!("no write for {:?} at most", registers.longest_silence());
    trio.wait_all_voters();
    assert_eq!(executed(&mut trio), [&*new, &new, &new]);
    for name in NAMES {
        eventually(SOON, &format!("the program that {name} reports"), || {
            let ran = warren.run(&["node", "inspect", name, "-o", "json"]);
            let node: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
            if node["programDigest"] == *new { Ok(()) } else { Err(ran.to_string()) }
        });
        assert_eq!(programs.files_of(name), ["warren", "warren.old"]);
        assert_eq!(digest(&programs.of(name).with_extension("old")), old, "{name}");
    }
    assert_eq!(trio.runs_what_serves(1), before, "containers go on");

    let again = warren.run(&["upgrade", &file, "--timeout", TIMEOUT]);
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again}");
    assert!(again.stderr.contains("already: "), "{again}");

    let history = registers.finish();
    println!("{} operations", history.len());
    match check(&history, SearchLimit::default()) {
        LinearizabilityVerdict::Linearizable => {}
        other => panic!("{other:?}"),
    }
    for node in &mut trio.nodes {
        assert!(node.stop().success(), "{}", node.process().log_tail(40));
    }
}
