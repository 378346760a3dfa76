//! Three managers on three machines: whatever happens to one of them, nothing that was acknowledged is lost, what
//! clients see is what one machine would have shown them, and no container notices.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use warren_test_history::{Limit, Verdict, check};
use warren_test_registers::{Access, Plan, Registers};
use warren_testkit::node::Node;
use warren_testkit::soak;
use warren_testkit::wait::throughout;

use crate::e2e::trio::Trio;

/// Writes must be acknowledged again within this, however busy the machine is; `make bench` says how soon they are.
const RESUMED: Duration = Duration::from_secs(15);
/// What a node gets to stop in an orderly way.
const STOPPED: Duration = Duration::from_secs(30);
/// A manager that hears no leader for two seconds sends its workers elsewhere: a bit longer than that.
const SEVERED: Duration = Duration::from_secs(3);
/// Says which faults to try again.
const SEED: &str = "WARREN_SEED";

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
    /// It and the next one do not hear each other for a while; the third and the clients hear both.
    Severed,
    /// Its machine comes back with an empty disk.
    Wiped,
}

impl Fault {
    const ALL: [Fault; 6] =
        [Self::Killed, Self::Stopped, Self::Paused, Self::CutOff, Self::Severed, Self::Wiped];
}

/// For how long writes were held up.
struct Held {
    /// From when the fault was done to the first acknowledgement of a write that was sent after it.
    first: Duration,
    /// The longest time without any acknowledgement until all was whole again.
    silence: Duration,
}

impl Trio {
    /// Lets `fault` happen to the node at `place`, and waits until it is whole again.
    #[track_caller]
    fn suffer(&mut self, fault: Fault, place: usize, registers: &Registers) -> Held {
        registers.watch();
        let other = (place + 1) % self.nodes.len();
        let sever = |trio: &Trio, apart| [place, other].map(|it| trio.nodes[it].host().keep_apart(apart));
        if fault == Fault::Severed {
            sever(self, true);
        }
        let node = &mut self.nodes[place];
        match fault {
            Fault::Killed | Fault::Wiped => node.kill(),
            Fault::Stopped => node.process().signal(Signal::SIGTERM),
            Fault::Paused => node.process().pause(),
            Fault::CutOff => node.host().disconnect(),
            Fault::Severed => {}
        }
        let first = registers.wait_for_write(Instant::now(), RESUMED);
        match fault {
            Fault::Stopped => {
                let status = node.process().wait(STOPPED);
                assert!(status.success(), "{}", node.process().log_tail(40));
                node.run_again();
            }
            Fault::Killed => node.run_again(),
            Fault::Paused => node.process().resume(),
            Fault::CutOff => node.host().connect(),
            Fault::Severed => {
                let look = || Ok(registers.wait_for_write(Instant::now(), RESUMED));
                throughout(SEVERED, "writes that are acknowledged", look);
                sever(self, false);
            }
            Fault::Wiped => {
                let (node, via) = pair(&mut self.nodes, place, other);
                node.lose_disk_and_join(via);
            }
        }
        self.nodes[place].wait_ready();
        self.all_vote();
        let silence = registers.longest_silence();
        if fault == Fault::Wiped {
            self.import();
        }
        Held { first, silence }
    }
}

/// Of each kind of fault, how long writes were held up: the middle one, the 95th of a hundred, and the worst.
fn show(held: BTreeMap<String, Vec<Held>>) {
    for (fault, held) in held {
        let said = |name: &str, of: fn(&Held) -> Duration| {
            let mut times: Vec<Duration> = held.iter().map(of).collect();
            times.sort_unstable();
            let at = |hundredths: usize| times[((times.len() - 1) * hundredths).div_ceil(100)].as_secs_f64();
            format!("{name} {:.3} {:.3} {:.3} s", at(50), at(95), at(100))
        };
        let (first, silence) = (said("first write", |it| it.first), said("no write for", |it| it.silence));
        println!("{fault}, {} times, p50 p95 worst: {first}, {silence}", held.len());
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
    // A machine that takes its time to start again, because it is busy, keeps its tasks; one without its disk has no
    // image, and no registry to get it from.
    trio.create_service(&["--replace-after", "10m", "--pull", "never"]);
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
    faults.extend(
        (0..extra).map(|_| (Fault::ALL[dice.random_range(0..Fault::ALL.len())], dice.random_range(0..3))),
    );
    for last in (1..faults.len()).rev() {
        faults.swap(last, dice.random_range(0..=last));
    }
    let mut held = BTreeMap::<String, Vec<Held>>::new();
    for (fault, place) in faults {
        let wiped = Some(place).filter(|_| fault == Fault::Wiped);
        let before = trio.pids(wiped);
        let who = if trio.all_vote() == place { "the leader" } else { "a follower" };
        let suffered = trio.suffer(fault, place, &registers);
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
    match check(&history, Limit::default()) {
        Verdict::Linearizable => {}
        other => panic!("{other:?}"),
    }
}

fn seed() -> u64 {
    std::env::var(SEED)
        .map_or_else(|_| rand::rng().random(), |text| text.parse().expect("a seed is a number"))
}
