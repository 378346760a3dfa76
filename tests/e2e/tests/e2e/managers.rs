//! Three managers on three machines: after any fault of one of them no acknowledged write is lost, the
//! clients' history is linearizable, and no container is disturbed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use warren_test_history::workload::{AdminAccess, RegisterWorkload, RegisterWorkloadConfig};
use warren_test_history::{LinearizabilityVerdict, SearchLimit, check};
use warren_testkit::cli::WarrenCli;
use warren_testkit::node::LabNode;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::soak;
use warren_testkit::wait::consistently;

use crate::e2e::three_managers::ThreeManagers;

/// Writes must be acknowledged again within this time on any busy machine; `make bench` measures the actual
/// time.
const RESUMED: Duration = Duration::from_secs(30);
/// The time for an orderly stop of a node.
const STOPPED: Duration = Duration::from_secs(30);
/// A manager without contact with a leader for two seconds redirects its workers: slightly longer than that.
const SEVERED: Duration = Duration::from_secs(3);
/// The seed of the faults, to repeat a run.
const SEED: &str = "WARREN_SEED";

/// A fault of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ManagerFault {
    /// kill -9.
    Killed,
    /// Stopped in an orderly way.
    Stopped,
    /// Paused, and resumed.
    Paused,
    /// Disconnected, and connected again.
    CutOff,
    /// It and the next one are partitioned from each other for a while; the third one and the clients reach
    /// both.
    Severed,
    /// Its machine returns with an empty disk.
    Wiped,
}

impl ManagerFault {
    const ALL: [ManagerFault; 6] =
        [Self::Killed, Self::Stopped, Self::Paused, Self::CutOff, Self::Severed, Self::Wiped];
}

/// How long writes were interrupted.
struct WriteOutage {
    /// From the injection of the fault to the first acknowledgement of a write that was sent after it.
    first: Duration,
    /// The longest time without any acknowledgement until the cluster had recovered.
    silence: Duration,
}

impl ThreeManagers {
    /// Injects `fault` at the node at `place`, and waits until it has recovered.
    #[track_caller]
    fn inject_fault(
        &mut self,
        fault: ManagerFault,
        place: usize,
        registers: &RegisterWorkload,
    ) -> WriteOutage {
        registers.watch();
        let other = (place + 1) % self.nodes.len();
        let sever =
            |trio: &ThreeManagers, apart| [place, other].map(|it| trio.nodes[it].host().isolate(apart));
        if fault == ManagerFault::Severed {
            sever(self, true);
        }
        let node = &mut self.nodes[place];
        match fault {
            ManagerFault::Killed | ManagerFault::Wiped => node.kill(),
            ManagerFault::Stopped => node.process().signal(Signal::SIGTERM),
            ManagerFault::Paused => node.process().pause(),
            ManagerFault::CutOff => node.host().disconnect(),
            ManagerFault::Severed => {}
        }
        let first = registers.wait_for_write(Instant::now(), RESUMED);
        match fault {
            ManagerFault::Stopped => {
                let status = node.process().wait(STOPPED);
                assert!(status.success(), "{}", node.process().log_tail(40));
                node.run_again();
            }
            ManagerFault::Killed => node.run_again(),
            ManagerFault::Paused => node.process().resume(),
            ManagerFault::CutOff => node.host().connect(),
            ManagerFault::Severed => {
                let look = || Ok(registers.wait_for_write(Instant::now(), RESUMED));
                consistently(SEVERED, "writes that are acknowledged", look);
                sever(self, false);
            }
            ManagerFault::Wiped => {
                let (node, via) = pair(&mut self.nodes, place, other);
                node.lose_disk_and_join(via);
            }
        }
        self.nodes[place].wait_ready();
        self.wait_all_voters();
        let silence = registers.longest_silence();
        if fault == ManagerFault::Wiped {
            self.import();
        }
        WriteOutage { first, silence }
    }
}

/// For each kind of fault, the interruption of writes: median, 95th percentile, and maximum.
fn show(held: BTreeMap<String, Vec<WriteOutage>>) {
    for (fault, held) in held {
        let summary = |name: &str, of: fn(&WriteOutage) -> Duration| {
            let mut times: Vec<Duration> = held.iter().map(of).collect();
            times.sort_unstable();
            let at = |hundredths: usize| times[((times.len() - 1) * hundredths).div_ceil(100)].as_secs_f64();
            format!("{name} {:.3} {:.3} {:.3} s", at(50), at(95), at(100))
        };
        let (first, silence) =
            (summary("first write", |it| it.first), summary("no write for", |it| it.silence));
        println!("{fault}, {} times, p50 p95 worst: {first}, {silence}", held.len());
    }
}

/// A node to change, and another one.
fn pair(nodes: &mut [LabNode], place: usize, other: usize) -> (&mut LabNode, &LabNode) {
    let [node, other] = nodes.get_disjoint_mut([place, other]).expect("two different nodes");
    (node, other)
}

#[test]
fn three_managers_survive_any_single_fault() {
    let seed = seed();
    println!("{SEED}={seed} repeats what the clients do and what is broken");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut trio = ThreeManagers::new();
    // A machine that is slow to restart because it is busy keeps its tasks; one without its disk has no
    // image, and no registry to pull it from.
    trio.create_service(&["--replace-after", "10m", "--pull", "never"]);
    let (clients, clients_dir) = (trio.lab.add_host(), ScratchDir::new());
    let plan = RegisterWorkloadConfig {
        managers: trio.addresses(),
        registers: 4,
        clients: 6,
        pause: Duration::from_millis(soak::count(30, 10) as u64),
        netns: Some(clients.netns().path()),
        seed,
    };
    // A user, since the administrator of a machine ends with its disk.
    let (contexts, token) = (clients_dir.path().join("contexts.toml"), clients_dir.path().join("token"));
    let warren = trio.nodes[0].warren();
    std::fs::write(&token, warren.run_ok(&["user", "create", "ops", "--role", "admin", "--quiet"])).unwrap();
    let login = ["login", &trio.nodes[0].api().to_string(), "--token-file", token.to_str().unwrap()];
    WarrenCli::new(&contexts).in_netns(&clients.netns().path()).run_ok(&login);
    let registers = RegisterWorkload::start(AdminAccess::of_contexts(&contexts), plan);

    // The leader and a follower get each fault, in random order; then, if there is time, more of them.
    let mut faults: Vec<(ManagerFault, bool)> =
        ManagerFault::ALL.into_iter().flat_map(|fault| [(fault, true), (fault, false)]).collect();
    let extra = soak::count(0, 100).saturating_sub(faults.len());
    faults.extend((0..extra).map(|_| {
        (ManagerFault::ALL[dice.random_range(0..ManagerFault::ALL.len())], dice.random_ratio(1, 3))
    }));
    for last in (1..faults.len()).rev() {
        faults.swap(last, dice.random_range(0..=last));
    }
    let mut held = BTreeMap::<String, Vec<WriteOutage>>::new();
    for (fault, is_leader) in faults {
        let leader = trio.wait_all_voters();
        let place = if is_leader { leader } else { (leader + dice.random_range(1..3)) % 3 };
        let wiped = Some(place).filter(|_| fault == ManagerFault::Wiped);
        let before = trio.pids(wiped);
        let who = if is_leader { "the leader" } else { "a follower" };
        let suffered = trio.inject_fault(fault, place, &registers);
        println!(
            "n{} {fault:?}, {who}: first write after {:?}, none for {:?}",
            place + 1,
            suffered.first,
            suffered.silence
        );
        held.entry(format!("{fault:?}, {who}")).or_default().push(suffered);
        let after = trio.runs_what_serves((place + 1) % 3);
        let disturbed: Vec<_> = before.iter().filter(|(id, pid)| after.get(*id) != Some(*pid)).collect();
        assert!(disturbed.is_empty(), "{fault:?} of n{}: {disturbed:?} of {before:?}, {after:?}", place + 1);
    }
    show(held);
    let history = registers.finish();
    println!("{} operations", history.len());
    match check(&history, SearchLimit::default()) {
        LinearizabilityVerdict::Linearizable => {}
        other => panic!("{other:?}"),
    }
}

fn seed() -> u64 {
    std::env::var(SEED)
        .map_or_else(|_| rand::rng().random(), |text| text.parse().expect("a seed is a number"))
}
