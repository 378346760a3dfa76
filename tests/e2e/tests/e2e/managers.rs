//! Three managers on three machines: whatever happens to one of them, nothing that was acknowledged is lost, what
//! clients see is what one machine would have shown them, and no container notices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use warren_test_history::{Limit, Verdict, check};
use warren_test_registers::{Access, Plan, Registers};
use warren_testkit::netns::Lab;
use warren_testkit::node::{Node, Settings};
use warren_testkit::soak;
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::world::{BOX, SOON, box_archive};

/// Writes must be acknowledged again within this, however busy the machine is; `make bench` says how soon they are.
const RESUMED: Duration = Duration::from_secs(15);
/// Says which faults to try again.
const SEED: &str = "WARREN_SEED";
const SERVICE: &str = "steady";
const REPLICAS: usize = 6;

/// Managers `n1`, `n2` and `n3`, which run tasks as well.
struct Trio {
    // In this order: the nodes end before their network.
    nodes: Vec<Node>,
    lab: Lab,
}

/// What happens to a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// kill -9.
    Killed,
    /// Stopped in an orderly way.
    Stopped,
    /// Stands still, and goes on.
    Paused,
    /// Its cable is pulled, and put back.
    CutOff,
    /// Its machine comes back with an empty disk.
    Wiped,
}

impl Fault {
    const ALL: [Fault; 5] = [Self::Killed, Self::Stopped, Self::Paused, Self::CutOff, Self::Wiped];
}

impl Trio {
    #[track_caller]
    fn new() -> Trio {
        let lab = Lab::new();
        let named = Settings::default().argument("--node-name").argument("n1");
        let first = Node::start(lab.host(), named);
        let mut nodes = vec![first];
        for name in ["n2", "n3"] {
            let joined = Node::join_manager(lab.host(), Settings::default(), &nodes[0], name);
            nodes.push(joined);
        }
        let trio = Trio { nodes, lab };
        trio.all_vote();
        let archive = trio.nodes[0].scratch().join("box.tar");
        box_archive().write(&archive).unwrap();
        trio.nodes[0].warren().ok(&["image", "import", archive.to_str().unwrap()]);
        trio
    }

    /// Waits until all three vote and one of them leads, by the word of each; gives the leader's place.
    #[track_caller]
    fn all_vote(&self) -> usize {
        let mut leaders: Vec<String> = Vec::new();
        for node in &self.nodes {
            let leader = eventually(2 * SOON, "three voters and a leader", || {
                let ran = node.warren().run(&["manager", "ls", "-o", "json"]);
                let said: serde_json::Value =
                    serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
                let managers = said.as_array().ok_or_else(|| ran.to_string())?;
                let votes = managers.iter().filter(|it| it["suffrage"] == "voter" && it["status"] == "READY");
                let leaders: Vec<_> = managers.iter().filter(|it| it["leader"] == true).collect();
                match (managers.len(), votes.count(), leaders.as_slice()) {
                    (3, 3, [leader]) => Ok(leader["name"].as_str().unwrap_or_default().to_owned()),
                    _ => Err(ran.to_string()),
                }
            });
            leaders.push(leader);
        }
        let place = self.nodes.iter().position(|node| node.name() == leaders[2]);
        place.unwrap_or_else(|| panic!("{leaders:?} is none of us"))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| SocketAddr::V4(node.api())).collect()
    }

    /// The process ids of all running containers of the nodes but for those of `except`, by container.
    #[track_caller]
    fn pids(&self, except: Option<usize>) -> BTreeMap<String, i32> {
        let kept = self.nodes.iter().enumerate().filter(|(place, _)| Some(*place) != except);
        kept.flat_map(|(_, node)| task::pids(node)).collect()
    }

    /// Waits until all tasks of the service serve, as `via` says.
    #[track_caller]
    fn serves(&self, via: usize) {
        eventually(2 * SOON, "all tasks", || task::serving(&self.nodes[via], SERVICE, REPLICAS));
    }

    #[track_caller]
    fn create_service(&self) {
        let replicas = REPLICAS.to_string();
        let words =
            ["service", "create", SERVICE, "--replicas", &replicas, "--image", BOX, "--stop-grace", "0s"];
        let command = ["--command", "sleep", "--arg", "100000"];
        self.nodes[1].warren().ok(&[&words[..], &command[..]].concat());
        self.serves(2);
    }

    /// Lets `fault` happen to the node at `place`, and waits until it is whole again; answers how long it took until
    /// writes were acknowledged again.
    #[track_caller]
    fn suffer(&mut self, fault: Fault, place: usize, registers: &Registers) -> Duration {
        let other = (place + 1) % self.nodes.len();
        let moment = Instant::now();
        let node = &mut self.nodes[place];
        match fault {
            Fault::Killed => node.kill(),
            Fault::Stopped => assert!(node.stop().success(), "{}", node.process().log_tail(40)),
            Fault::Paused => node.process().pause(),
            Fault::CutOff => node.host().disconnect(),
            Fault::Wiped => {}
        }
        let resumed = match fault {
            Fault::Wiped => {
                let (node, via) = pair(&mut self.nodes, place, other);
                node.lose_disk_and_join(via);
                registers.wait_for_write(moment, RESUMED)
            }
            _ => registers.wait_for_write(moment, RESUMED),
        };
        let node = &mut self.nodes[place];
        match fault {
            Fault::Killed | Fault::Stopped => {
                node.run_again();
                node.wait_ready();
            }
            Fault::Paused => node.process().resume(),
            Fault::CutOff => node.host().connect(),
            Fault::Wiped => {}
        }
        self.all_vote();
        resumed
    }
}

/// One of the nodes to change, and another one.
fn pair(nodes: &mut [Node], place: usize, other: usize) -> (&mut Node, &Node) {
    let [node, other] = nodes.get_disjoint_mut([place, other]).expect("two different nodes");
    (node, other)
}

#[test]
fn three_managers_survive_whatever_happens_to_one_of_them() {
    let seed = seed();
    println!("{SEED}={seed} repeats what the clients do and what is broken");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut trio = Trio::new();
    trio.create_service();
    let clients = trio.lab.host();
    let plan = Plan {
        managers: trio.addresses(),
        registers: 4,
        clients: 6,
        pause: Duration::from_millis(10),
        netns: Some(clients.netns().path()),
        seed,
    };
    let contexts = trio.nodes[0].scratch().join("contexts.toml");
    let registers = Registers::start(Access::of_contexts(&contexts), plan);

    // Each manager meets each fault, in an order that nobody chose; then, if there is time, more of them.
    let mut faults: Vec<(Fault, usize)> =
        Fault::ALL.into_iter().flat_map(|fault| (0..3).map(move |place| (fault, place))).collect();
    let extra = soak::count(0, 100).saturating_sub(faults.len());
    faults.extend((0..extra).map(|_| (Fault::ALL[dice.random_range(0..5)], dice.random_range(0..3))));
    for last in (1..faults.len()).rev() {
        faults.swap(last, dice.random_range(0..=last));
    }
    for (fault, place) in faults {
        let wiped = Some(place).filter(|_| fault == Fault::Wiped);
        let before = trio.pids(wiped);
        let leads = trio.all_vote() == place;
        let resumed = trio.suffer(fault, place, &registers);
        println!(
            "n{} {fault:?}{}: writes after {resumed:?}",
            place + 1,
            if leads { ", the leader" } else { "" }
        );
        trio.serves((place + 1) % 3);
        let after = trio.pids(None);
        let disturbed: Vec<_> = before.iter().filter(|(id, pid)| after.get(*id) != Some(*pid)).collect();
        assert!(disturbed.is_empty(), "{fault:?} of n{}: {disturbed:?} of {before:?}, {after:?}", place + 1);
    }
    let history = registers.finish();
    println!("{} operations", history.len());
    match check(&history, Limit::default()) {
        Verdict::Linearizable => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_of_a_lost_machine_run_elsewhere_also_if_it_led() {
    let mut trio = Trio::new();
    trio.create_service();
    for round in 0..2 {
        // The first time one that follows, the second time the leader.
        let leader = trio.all_vote();
        let lost = if round == 0 { (leader + 1) % 3 } else { leader };
        let other = (lost + 1) % 3;
        let kept = trio.pids(Some(lost));
        trio.nodes[lost].host().disconnect();
        eventually(2 * SOON, "all tasks on the other machines", || {
            let tasks = task::serving(&trio.nodes[other], SERVICE, REPLICAS)?;
            let there = tasks.iter().filter(|task| task.node_name == trio.nodes[lost].name()).count();
            if there == 0 { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
        let now = trio.pids(Some(lost));
        assert!(kept.iter().all(|(id, pid)| now.get(id) == Some(pid)), "{kept:?} {now:?}");
        trio.nodes[lost].host().connect();
        eventually(2 * SOON, "the end of what was replaced", || {
            let left = task::pids(&trio.nodes[lost]);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        trio.nodes[lost].wait_ready();
        trio.serves(lost);
    }
}

fn seed() -> u64 {
    std::env::var(SEED)
        .map_or_else(|_| rand::rng().random(), |text| text.parse().expect("a seed is a number"))
}
