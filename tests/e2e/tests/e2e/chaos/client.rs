//! The client: it records acknowledged changes, and changes without an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use warren_testkit::cli::WarrenCli;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::BOX;

/// The command of the containers of all services: one process each, which only SIGKILL ends. It runs only
/// with the secret that all of them use.
pub const SCRIPT: &str = "grep -q whole /run/secrets/chaos && exec tail -f /dev/null";
/// The name of that secret.
pub const SECRET: &str = "chaos";
/// The same as in the process table.
pub const COMMAND: &str = "tail -f /dev/null";

/// How long a client goes on after the last kill until enough of its changes are acknowledged.
const ACKNOWLEDGED: Duration = Duration::from_secs(120);

/// The possible numbers of replicas of a service; `None`: it may not exist.
type PossibleReplicas = BTreeSet<Option<usize>>;

/// The possible states of each service that was ever requested.
#[derive(Debug, Default)]
struct ClientModel {
    services: BTreeMap<String, PossibleReplicas>,
    made: usize,
    /// The most tasks at a time.
    most_tasks: usize,
}

#[derive(Debug)]
enum ClientChange {
    Create(String, usize),
    Scale(String, usize),
    Remove(String),
}

impl ClientModel {
    fn choose(&mut self, dice: &mut StdRng) -> ClientChange {
        let most = |possible: &PossibleReplicas| possible.iter().flatten().max().copied().unwrap_or(0);
        let room = self.most_tasks.saturating_sub(self.services.values().map(most).sum());
        let there = self.services.iter().filter(|(_, possible)| **possible != PossibleReplicas::from([None]));
        let chosen = there.choose(dice).map(|(name, possible)| (name.clone(), most(possible)));
        match (chosen, dice.random_range(0..10)) {
            (Some((name, _)), 0..3) => ClientChange::Remove(name),
            (Some((name, now)), 3..7) => {
                ClientChange::Scale(name, dice.random_range(0..=(now + room).min(4)))
            }
            _ => {
                self.made += 1;
                ClientChange::Create(format!("churn-{}", self.made), dice.random_range(0..=room.min(3)))
            }
        }
    }

    /// Records the change: it is certain if it was acknowledged, else possible.
    fn note(&mut self, change: &ClientChange, acknowledged: bool) {
        let (name, then) = match change {
            ClientChange::Create(name, replicas) | ClientChange::Scale(name, replicas) => {
                (name, Some(*replicas))
            }
            ClientChange::Remove(name) => (name, None),
        };
        let possible = self.services.entry(name.clone()).or_insert_with(|| PossibleReplicas::from([None]));
        if acknowledged {
            possible.clear();
        }
        possible.insert(then);
    }
}

/// The state that the client's thread shares with the test.
#[derive(Debug, Default)]
struct SharedClient {
    memory: Mutex<ClientModel>,
    /// Set by the test before it takes the lock, so that the client yields it.
    pause: AtomicBool,
    resumed: Condvar,
    stop: AtomicBool,
    /// The number of acknowledged changes.
    acknowledged: AtomicUsize,
}

impl SharedClient {
    fn make_changes(&self, warren: &WarrenCli, mut dice: StdRng) {
        let mut memory = self.memory.lock().unwrap();
        while !self.stop.load(Ordering::SeqCst) {
            let change = memory.choose(&mut dice);
            let acknowledged = send_change(warren, &change);
            memory.note(&change, acknowledged);
            self.acknowledged.fetch_add(usize::from(acknowledged), Ordering::SeqCst);
            memory = self.resumed.wait_while(memory, |_| self.pause.load(Ordering::SeqCst)).unwrap();
        }
    }
}

/// A client that makes changes in the background until it is stopped.
pub struct ChaosClient {
    shared: Arc<SharedClient>,
    thread: JoinHandle<()>,
}

impl ChaosClient {
    /// Starts changes that depend on `seed`, with `most_tasks` at a time.
    pub fn start(warren: WarrenCli, seed: u64, most_tasks: usize) -> ChaosClient {
        let shared = Arc::<SharedClient>::default();
        shared.memory.lock().unwrap().most_tasks = most_tasks;
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || own.make_changes(&warren, StdRng::seed_from_u64(seed)));
        ChaosClient { shared, thread }
    }

    /// Checks, while no change is in flight, that every service is in a possible state, and reduces the
    /// possible states to the actual one.
    #[track_caller]
    pub fn assert_acknowledged(&self, warren: &WarrenCli, kill: usize) {
        self.shared.pause.store(true, Ordering::SeqCst);
        let mut memory = self.shared.memory.lock().unwrap();
        let found = observed_services(warren);
        for (name, possible) in &mut memory.services {
            let now = found.get(name).copied().flatten();
            assert!(
                possible.contains(&now),
                "after kill {kill} {name} has {now:?}, but {possible:?} is possible"
            );
            *possible = PossibleReplicas::from([now]);
        }
        self.shared.pause.store(false, Ordering::SeqCst);
        drop(memory);
        self.shared.resumed.notify_all();
    }

    /// Waits until at least that many changes were acknowledged, and stops the client. Returns the services with
    /// their replicas.
    #[track_caller]
    pub fn end(self, least: usize) -> BTreeMap<String, usize> {
        let acknowledged = || self.shared.acknowledged.load(Ordering::SeqCst);
        eventually(ACKNOWLEDGED, &format!("{least} acknowledged changes"), || {
            // A client that has panicked says why below.
            let is_over = acknowledged() >= least || self.thread.is_finished();
            if is_over { Ok(()) } else { Err(format!("{} changes", acknowledged())) }
        });
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the client does not panic");
        let memory = self.shared.memory.lock().unwrap();
        println!("{} creates were asked for, {} changes acknowledged", memory.made, acknowledged());
        let settled =
            |(name, possible): (&String, &PossibleReplicas)| match possible.iter().collect::<Vec<_>>()[..] {
                [now] => now.map(|replicas| (name.clone(), replicas)),
                _ => panic!(
                    "the last changes were made on a node that runs, but {name} may be any of {possible:?}"
                ),
            };
        memory.services.iter().filter_map(settled).collect()
    }
}

fn send_change(warren: &WarrenCli, change: &ClientChange) -> bool {
    let (words, allowed): (Vec<String>, &[i32]) = match change {
        ClientChange::Create(name, replicas) => {
            let line = format!(
                "service create {name} --image {BOX} --replicas {replicas} --drain-delay 2s --stop-grace 100ms \
                 --secret {SECRET}"
            );
            let words = line.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let script = ["--command", "sh", "--arg", "-c", "--arg", SCRIPT].map(str::to_owned);
            ([words, script.to_vec()].concat(), &[0, 5])
        }
        ClientChange::Scale(name, replicas) => {
            (["service", "scale", &format!("{name}={replicas}")].map(str::to_owned).to_vec(), &[0, 3, 4, 5])
        }
        ClientChange::Remove(name) => (["service", "rm", name].map(str::to_owned).to_vec(), &[0, 3, 5]),
    };
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.insert(2, "--detach");
    let ran = warren.run(&words);
    assert!(allowed.contains(&ran.code), "{ran}");
    ran.code == 0
}

/// Makes the secret that the services have.
#[track_caller]
pub fn create_secret(warren: &WarrenCli, scratch: &Path) {
    let file = scratch.join("chaos-secret");
    std::fs::write(&file, "is whole\n").unwrap();
    warren.run_ok(&["secret", "create", SECRET, file.to_str().unwrap()]);
}

/// Every service with its replicas, `None` for one that is being removed.
#[track_caller]
fn observed_services(warren: &WarrenCli) -> BTreeMap<String, Option<usize>> {
    let listed = warren.json(&["service", "ls"]);
    let one = |service: &serde_json::Value| {
        let replicas = service["replicas"]["desired"].as_u64().unwrap();
        let replicas = usize::try_from(replicas).unwrap();
        let is_going = service["removing"].as_bool().unwrap();
        (service["name"].as_str().unwrap().to_owned(), (!is_going).then_some(replicas))
    };
    listed.as_array().unwrap().iter().map(one).collect()
}
