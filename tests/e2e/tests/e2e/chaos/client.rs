//! The client: it remembers what it was told, and what it does not know because nobody answered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use warren_testkit::warren::Warren;

use crate::e2e::world::BOX;

/// What the containers of all services run: one process each, which no signal but SIGKILL ends. It runs only with the
/// secret that all of them have.
pub const SCRIPT: &str = "grep -q whole /run/secrets/chaos && exec tail -f /dev/null";
/// The name of that secret.
pub const SECRET: &str = "chaos";
/// The same as the process table shows it.
pub const COMMAND: &str = "tail -f /dev/null";

/// How many replicas a service may have; `None`: it may not be there.
type Possible = BTreeSet<Option<usize>>;

/// What is known of each service that was ever asked for.
#[derive(Debug, Default)]
struct Memory {
    services: BTreeMap<String, Possible>,
    made: usize,
    acknowledged: usize,
    /// More tasks than this are not asked for at a time.
    most_tasks: usize,
}

#[derive(Debug)]
enum Change {
    Create(String, usize),
    Scale(String, usize),
    Remove(String),
}

impl Memory {
    fn choose(&mut self, dice: &mut StdRng) -> Change {
        let most = |possible: &Possible| possible.iter().flatten().max().copied().unwrap_or(0);
        let room = self.most_tasks.saturating_sub(self.services.values().map(most).sum());
        let there = self.services.iter().filter(|(_, possible)| **possible != Possible::from([None]));
        let chosen = there.choose(dice).map(|(name, possible)| (name.clone(), most(possible)));
        match (chosen, dice.random_range(0..10)) {
            (Some((name, _)), 0..3) => Change::Remove(name),
            (Some((name, now)), 3..7) => Change::Scale(name, dice.random_range(0..=(now + room).min(4))),
            _ => {
                self.made += 1;
                Change::Create(format!("churn-{}", self.made), dice.random_range(0..=room.min(3)))
            }
        }
    }

    /// Notes the change: it is done if that was acknowledged, else it may be.
    fn note(&mut self, change: &Change, acknowledged: bool) {
        let (name, then) = match change {
            Change::Create(name, replicas) | Change::Scale(name, replicas) => (name, Some(*replicas)),
            Change::Remove(name) => (name, None),
        };
        let possible = self.services.entry(name.clone()).or_insert_with(|| Possible::from([None]));
        if acknowledged {
            possible.clear();
            self.acknowledged += 1;
        }
        possible.insert(then);
    }
}

/// What the client's thread shares with the test.
#[derive(Debug, Default)]
struct Shared {
    memory: Mutex<Memory>,
    /// Set by the test before it takes the memory, which it would hardly get otherwise.
    pause: AtomicBool,
    resumed: Condvar,
    stop: AtomicBool,
}

impl Shared {
    fn make_changes(&self, warren: &Warren, mut dice: StdRng) {
        let mut memory = self.memory.lock().unwrap();
        while !self.stop.load(Ordering::SeqCst) {
            let change = memory.choose(&mut dice);
            let acknowledged = ask(warren, &change);
            memory.note(&change, acknowledged);
            memory = self.resumed.wait_while(memory, |_| self.pause.load(Ordering::SeqCst)).unwrap();
        }
    }
}

/// A client that makes changes in the background until it is ended.
pub struct Client {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Client {
    /// Starts making changes that `seed` decides, with `most_tasks` at a time.
    pub fn start(warren: Warren, seed: u64, most_tasks: usize) -> Client {
        let shared = Arc::<Shared>::default();
        shared.memory.lock().unwrap().most_tasks = most_tasks;
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || own.make_changes(&warren, StdRng::seed_from_u64(seed)));
        Client { shared, thread }
    }

    /// Sees, while no change is on its way, that every service is as it may be, and forgets what was possible
    /// and is not so.
    #[track_caller]
    pub fn assert_kept(&self, warren: &Warren, kill: usize) {
        self.shared.pause.store(true, Ordering::SeqCst);
        let mut memory = self.shared.memory.lock().unwrap();
        let found = found(warren);
        for (name, possible) in &mut memory.services {
            let now = found.get(name).copied().flatten();
            assert!(
                possible.contains(&now),
                "after kill {kill} {name} has {now:?}, but {possible:?} is possible"
            );
            *possible = Possible::from([now]);
        }
        self.shared.pause.store(false, Ordering::SeqCst);
        drop(memory);
        self.shared.resumed.notify_all();
    }

    /// Stops making changes, of which at least so many must have been acknowledged; the services that are there,
    /// with their replicas.
    #[track_caller]
    pub fn end(self, least: usize) -> BTreeMap<String, usize> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the client does not panic");
        let memory = self.shared.memory.lock().unwrap();
        println!("{} creates were asked for, {} changes acknowledged", memory.made, memory.acknowledged);
        assert!(memory.acknowledged >= least, "hardly anything was acknowledged: {memory:?}");
        let settled = |(name, possible): (&String, &Possible)| match possible.iter().collect::<Vec<_>>()[..] {
            [now] => now.map(|replicas| (name.clone(), replicas)),
            _ => panic!(
                "the last changes were made on a node that runs, but {name} may be any of {possible:?}"
            ),
        };
        memory.services.iter().filter_map(settled).collect()
    }
}

fn ask(warren: &Warren, change: &Change) -> bool {
    let (words, allowed): (Vec<String>, &[i32]) = match change {
        Change::Create(name, replicas) => {
            let line = format!(
                "service create {name} --image {BOX} --replicas {replicas} --stop-grace 100ms --secret {SECRET}"
            );
            let words = line.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let script = ["--command", "sh", "--arg", "-c", "--arg", SCRIPT].map(str::to_owned);
            ([words, script.to_vec()].concat(), &[0, 5])
        }
        Change::Scale(name, replicas) => {
            (["service", "scale", &format!("{name}={replicas}")].map(str::to_owned).to_vec(), &[0, 3, 4, 5])
        }
        Change::Remove(name) => (["service", "rm", name].map(str::to_owned).to_vec(), &[0, 3, 5]),
    };
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.insert(2, "--detach");
    let ran = warren.run(&words);
    assert!(allowed.contains(&ran.code), "{ran}");
    ran.code == 0
}

/// Makes the secret that the services have.
#[track_caller]
pub fn create_secret(warren: &Warren, scratch: &Path) {
    let file = scratch.join("chaos-secret");
    std::fs::write(&file, "is whole\n").unwrap();
    warren.ok(&["secret", "create", SECRET, file.to_str().unwrap()]);
}

/// Every service with its replicas, `None` for one that is on its way out.
#[track_caller]
fn found(warren: &Warren) -> BTreeMap<String, Option<usize>> {
    let listed = warren.json(&["service", "ls"]);
    let one = |service: &serde_json::Value| {
        let replicas = service["replicas"]["wanted"].as_u64().unwrap();
        let replicas = usize::try_from(replicas).unwrap();
        let is_going = service["removing"].as_bool().unwrap();
        (service["name"].as_str().unwrap().to_owned(), (!is_going).then_some(replicas))
    };
    listed.as_array().unwrap().iter().map(one).collect()
}
