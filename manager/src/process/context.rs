//! What outlives a manager's process on its machine, and must follow what it becomes: the admin context, so that the
//! command line works at once and goes on to, and the address in `node.toml`.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_client::{Context, Contexts, Identity, PrivateKey, Target};
use warren_core::Change;
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, chain};
use warren_security::{Credentials, Roots};
use warren_types::{ClusterId, ManagerAddress};

use super::{Advertise, Flags, MANAGER, Plan};
use crate::manager::Manager;
use crate::recovery::seat::{self, Standing};
use crate::store::{Store, Watch};

const WHAT: &str = "the context was not written";
/// Certificates of one administrator that end so close to each other are both good: of two managers of one machine, for
/// example.
const OLDER: Duration = Duration::from_secs(24 * 60 * 60);

/// Answers the context's name.
fn write_context(
    file: &Path,
    addresses: Vec<ManagerAddress>,
    cluster: ClusterId,
    identity: Identity,
) -> Result<String, Failure> {
    let known = Contexts::load(file).map_err(|error| failed(&error))?;
    let name = context_name(&known, &identity, &cluster.to_string());
    // Of another cluster of that name nothing is known of this one.
    let life = match known.get(&name) {
        Some(Context { target: Target::Tcp { identity: known, .. }, life, .. })
            if known.ca == identity.ca =>
        {
            *life
        }
        _ => 0,
    };
    let context = Context { name: name.clone(), target: Target::Tcp { addresses, identity }, life };
    Contexts::ensure(file, context).map_err(|error| failed(&error))?;
    Ok(name)
}

/// Writes what this machine's administrator shows into the contexts file, for the manager at `address` and `others`
/// that are known to be in the same life of the cluster, and says so. What was there before is not asked: it may be of
/// a life that is over. The socket works for root without it, so that it is no failure when that cannot be.
pub fn told_context(
    address: &str,
    others: &[ManagerAddress],
    cluster: ClusterId,
    roots: &Roots,
    admin: &Credentials,
) -> Option<String> {
    let write = || {
        let own = address.parse().map_err(|why| Failure::new(Exit::Usage, WHAT, why, "see --advertise"))?;
        let (file, identity) = (contexts_file()?, identity_of(roots.pem(), admin));
        let name = write_context(&file, own_first(own, others), cluster, identity)?;
        Ok((name, file.display().to_string()))
    };
    match write() {
        Ok((name, file)) => Some(format!("admin context {name:?} is in {file}\n")),
        Err::<_, Failure>(failure) => {
            tracing::warn!("no admin context was written: {failure}");
            None
        }
    }
}

/// Each once: one that lost its data was told of itself.
fn own_first(own: ManagerAddress, others: &[ManagerAddress]) -> Vec<ManagerAddress> {
    let mut addresses = vec![own];
    for other in others {
        if !addresses.contains(other) {
            addresses.push(other.clone());
        }
    }
    addresses
}

/// Where the managers are that the one in `data_dir` was told of when it joined; none where it made its group.
pub fn told_when_it_joined(data_dir: &Path) -> Vec<ManagerAddress> {
    match seat::look(&data_dir.join("manager")) {
        Ok(Standing::Seated(seat)) => seat.managers.into_iter().map(|manager| manager.address).collect(),
        _ => Vec::new(),
    }
}

fn contexts_file() -> Result<PathBuf, Failure> {
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || Failure::new(Exit::Failed, WHAT, "nothing says where the contexts file is", hint);
    Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)
}

fn failed(error: &warren_client::Error) -> Failure {
    let hint = "correct the file, or name another in WARREN_CONTEXTS";
    Failure::new(Exit::Failed, WHAT, chain(error), hint)
}

fn identity_of(ca: &str, admin: &Credentials) -> Identity {
    Identity {
        ca: ca.to_owned(),
        certificate: admin.certificate_pem().to_owned(),
        key: PrivateKey(admin.key().pem().to_owned()),
    }
}

/// `default`, unless that is another cluster's.
fn context_name(known: &Contexts, own: &Identity, cluster: &str) -> String {
    let short = || cluster.chars().take(8).collect();
    match known.get("default").map(|context| &context.target) {
        Some(Target::Tcp { identity, .. }) if identity.ca != own.ca => short(),
        Some(Target::Unix { .. }) => short(),
        _ => "default".to_owned(),
    }
}

/// For as long as a manager runs: contexts that show an administrator's certificate get the renewed one, and an address
/// that people change is the one that the manager starts with the next time.
pub fn keep_up(plan: &Plan, manager: &Manager) -> impl Future<Output = Infallible> + use<> {
    let (mut admin, ca) = (manager.admins(), manager.roots().pem().to_owned());
    let (data_dir, store) = (plan.data_dir.clone(), manager.store().clone());
    let mut addresses = Addresses::of(store, plan.advertised(manager.address()));
    async move {
        admin.mark_changed();
        loop {
            tokio::select! {
                changed = admin.changed() => match changed {
                    Ok(()) => {
                        let shown = admin.borrow_and_update().clone();
                        renew_contexts(&ca, &shown);
                    }
                    // The manager ends.
                    Err(_) => std::future::pending().await,
                },
                address = addresses.next() => {
                    if let Err(failure) = remember_address(&data_dir, address) {
                        tracing::warn!("the manager's new address was not kept for its next start: {failure}");
                    }
                }
            }
        }
    }
}

/// Contexts of this cluster that show an older certificate of the same administrator show this one.
fn renew_contexts(ca: &str, admin: &Credentials) {
    let is_older = |known: &Identity| {
        let key = warren_security::PrivateKey::parse(&known.key.0);
        let shown = key.and_then(|key| Credentials::new(known.certificate.clone(), key));
        known.ca == ca
            && shown.is_ok_and(|shown| {
                shown.identity() == admin.identity() && shown.expires_at() + OLDER < admin.expires_at()
            })
    };
    let Ok(file) = contexts_file() else { return };
    match Contexts::renew(&file, is_older, &identity_of(ca, admin)) {
        Ok(0) => {}
        Ok(_) => tracing::info!(file = %file.display(), "the admin context has the renewed certificate"),
        Err(error) => tracing::warn!(error = chain(&error), "the admin context was not renewed"),
    }
}

/// What the cluster says this manager's address is, whenever that changes.
struct Addresses {
    store: Store,
    watch: Watch,
    known: Option<ManagerAddress>,
    /// What it says itself.
    own: String,
}

impl Addresses {
    fn of(store: Store, own: String) -> Self {
        let published = store.read();
        let known = address_in(&store);
        Self { watch: store.watch(published.index), known, store, own }
    }

    async fn next(&mut self) -> ManagerAddress {
        let own = self.store.own();
        loop {
            let may_be = match self.watch.next().await {
                Ok(batches) => {
                    let mut changes = batches.iter().flat_map(|batch| batch.changes.iter());
                    changes.any(|change| *change == Change::Member(own))
                }
                // What was missed may be about this manager.
                Err(_) => true,
            };
            let now = may_be.then(|| address_in(&self.store)).flatten();
            // The first word is this manager's own.
            if let Some(now) = now
                && self.known.replace(now.clone()).is_some_and(|known| known != now)
                && now.to_string() != self.own
            {
                return now;
            }
        }
    }
}

fn address_in(store: &Store) -> Option<ManagerAddress> {
    store.read().state.member(store.own()).map(|member| member.address.clone())
}

fn remember_address(data_dir: &Path, address: ManagerAddress) -> Result<(), Failure> {
    let Some(kept) = Sections::load(data_dir)? else { return Ok(()) };
    let flags = kept.section::<Flags>(MANAGER)?.unwrap_or_default();
    let advertise = Some(Advertise::from(address));
    if flags.advertise == advertise {
        return Ok(());
    }
    kept.with(MANAGER, &Flags { advertise, ..flags }).remember()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use warren_types::{Id, ManagerId};

    use super::*;
    use crate::ca::Keys;
    use crate::recovery::seat::{Introduced, Seat};

    #[test]
    fn one_that_joined_writes_where_the_others_are_and_one_that_made_its_group_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (file, data_dir) = (dir.path().join("contexts.toml"), dir.path().join("data"));
        let manager_dir = data_dir.join("manager");
        std::fs::create_dir_all(&manager_dir).unwrap();
        let keys = Keys::open(&manager_dir, true, SystemTime::now()).unwrap();
        let admin = keys.admin().borrow().clone();
        let write = |address: &str| {
            let identity = identity_of(keys.authority.roots().pem(), &admin);
            let addresses = own_first(address.parse().unwrap(), &told_when_it_joined(&data_dir));
            let name = write_context(&file, addresses, keys.cluster, identity).unwrap();
            let known = Contexts::load(&file).unwrap();
            let Target::Tcp { addresses, .. } = &known.get(&name).unwrap().target else {
                panic!("{known:?}")
            };
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let told = |member: u64| {
            let address = format!("10.0.0.{member}:8080").parse().unwrap();
            Introduced { member, id: ManagerId(Id(member.into())), address }
        };
        let joined = Seat { managers: [1, 2, 3].map(told).to_vec(), ..Seat::alone(4, keys.identity()) };
        seat::take(&manager_dir, &joined).unwrap();
        let all = ["10.0.0.3:8080", "10.0.0.1:8080", "10.0.0.2:8080"];
        for _ in 0..2 {
            assert_eq!(write("10.0.0.3:8080"), all, "it took the place of the third one");
        }
        // A new life begins with this one: the others may still be in the last.
        seat::take(&manager_dir, &Seat::alone(5, keys.identity())).unwrap();
        assert_eq!(write("10.0.0.3:8080"), ["10.0.0.3:8080"]);
    }

    #[test]
    fn an_address_that_was_changed_is_kept_for_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        remember_address(dir.path(), "10.0.0.2:1".parse().unwrap()).unwrap();
        assert!(Sections::load(dir.path()).unwrap().is_none(), "nothing is made up");
        let before = Flags {
            advertise: Some("10.0.0.1".parse().unwrap()),
            listen: Some("127.0.0.1:1".parse().unwrap()),
            ..Flags::default()
        };
        Sections::new(dir.path()).with(MANAGER, &before).remember().unwrap();
        for _ in 0..2 {
            remember_address(dir.path(), "10.0.0.2:1".parse().unwrap()).unwrap();
            let kept = Sections::load(dir.path()).unwrap().unwrap().section::<Flags>(MANAGER).unwrap();
            let advertise = Some("10.0.0.2:1".parse().unwrap());
            assert_eq!(kept, Some(Flags { advertise, ..before.clone() }));
        }
    }
}
