//! `warren manager unlock`, with a manager that is locked.

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use warren_manager::locked::LockedManager;
use warren_security::UnlockKey;
use warren_security::seal::{KeyFiles, Keyring};

use crate::user::CliUser;

/// The manager of this machine waits for its key.
fn locked(person: &CliUser) -> (Runtime, UnlockKey, JoinHandle<UnlockKey>) {
    let (dir, run_dir) = (person.path("data/manager"), person.path("run"));
    for path in [&dir, &run_dir] {
        std::fs::create_dir_all(path).unwrap();
    }
    Keyring::open(&dir, &Default::default()).unwrap();
    let key = UnlockKey::generate();
    KeyFiles::open(&dir, None).unwrap().set_unlock_key(Some(&key)).unwrap();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let entered = runtime.enter();
    let manager = LockedManager::bind(&run_dir.join("warren.sock"), dir, key.id()).unwrap();
    drop(entered);
    let waiting = runtime.spawn(async move { manager.wait_unlocked().await.unwrap() });
    (runtime, key, waiting)
}

#[test]
fn manager_is_unlocked_with_its_key_only() {
    let person = CliUser::new();
    let (runtime, key, waiting) = locked(&person);
    let give = |text: &str| person.warren_with(&["manager", "unlock"], text.as_bytes());
    let ran = give("WRN-1-ab\n");
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("begins with WARREN-UNLOCK-1-"), "{ran:?}");
    let other = UnlockKey::generate();
    let ran = give(other.reveal().as_str());
    assert_eq!(ran.code, 2, "{ran:?}");
    let ids = [key.id(), other.id()].map(|id| id.to_string());
    assert!(ids.iter().all(|id| ran.stderr.contains(id)), "{ran:?}");
    assert!(!ran.stderr.contains(&*other.reveal()), "{ran:?}");
    assert!(!waiting.is_finished());

    // Whatever else is asked of it is refused.
    let socket = person.path("run/warren.sock");
    person.write_contexts(&format!(
        "current = \"locked\"\n[[contexts]]\nname = \"locked\"\nsocket = {socket:?}\n"
    ));
    let refused = person.fails(5, &["service", "ls"]);
    assert!(
        refused.contains("this manager is locked") && refused.contains("`warren manager unlock`"),
        "{refused}"
    );

    let typed = format!("{}\n", *key.reveal());
    let session = person.type_to(&["manager", "unlock"], "Unlock key: ", typed.as_bytes());
    assert_eq!(session.code, 0, "{session:?}");
    assert!(session.screen.contains("the manager is unlocked, and starts"), "{session:?}");
    assert!(!session.screen.contains(&*key.reveal()) && session.is_echo_on, "{session:?}");
    assert_eq!(runtime.block_on(waiting).unwrap().id(), key.id());
    let refused = person.fails(5, &["manager", "unlock"]);
    assert!(refused.contains("no manager runs here"), "{refused}");
}

#[test]
fn running_manager_is_not_locked() {
    let person = CliUser::new();
    // Its socket is in the home directory.
    let home = person.path("");
    let refused = person.fails(4, &["manager", "unlock", "--run-dir", home.to_str().unwrap()]);
    assert!(refused.contains("it is not locked"), "{refused}");
}
