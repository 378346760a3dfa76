//! Files that outlive the manager's process and follow its changes: the admin context of the command line,
//! and the address in `node.toml`.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warren_bootstrap::member_identity::{self, LocalMemberStatus};
use warren_client::{ClientContext, ClientIdentity, ClientTarget, Contexts, PrivateKeyPem};
use warren_core::StateChange;
use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, ExitKind, error_chain};
use warren_security::{Credentials, Roots};
use warren_store::{ChangeWatch, PublishedState, Store};
use warren_types::{ClusterId, ManagerAddress, MemberId, PublicKeyHash};

use super::{AdvertiseAddress, MANAGER_SECTION, ManagerFlags, ManagerSetup, ManagerStartOutcome};
use crate::manager::Manager;

const CONTEXT_FAILED: &str = "the context was not written";

/// Returns the context's name.
fn write_context(
    file: &Path,
    addresses: Vec<ManagerAddress>,
    cluster: ClusterId,
    identity: ClientIdentity,
) -> Result<String, CommandError> {
    let known = Contexts::load(file).map_err(|error| context_failure(&error))?;
    let name = context_name(&known, &identity, &cluster.to_string());
    // A context of another cluster with that name has no incarnation of this one.
    let incarnation =
        match known.get(&name) {
            Some(ClientContext {
                target: ClientTarget::Tcp { identity: known, .. }, incarnation, ..
            }) if cluster_of(known) == cluster_of(&identity) => *incarnation,
            _ => 0,
        };
    let context =
        ClientContext { name: name.clone(), target: ClientTarget::Tcp { addresses, identity }, incarnation };
    Contexts::upsert(file, context).map_err(|error| context_failure(&error))?;
    Ok(name)
}

/// Writes this machine's admin certificate to the contexts file, for the manager at `address` and `others`
/// known to be in the same incarnation, and returns a message. An existing context is replaced: it may belong
/// to a superseded incarnation. Failure is not an error, since root can use the socket without a context.
pub fn write_admin_context(
    address: &str,
    others: &[ManagerAddress],
    cluster: ClusterId,
    roots: &Roots,
    admin: &Credentials,
) -> Option<String> {
    let write = || {
        let own = address
            .parse()
            .map_err(|why| CommandError::new(ExitKind::Usage, CONTEXT_FAILED, why, "see --advertise"))?;
        let (file, identity) = (contexts_file()?, client_identity(roots.pem(), admin));
        let name = write_context(&file, own_first(own, others), cluster, identity)?;
        Ok((name, file.display().to_string()))
    };
    match write() {
        Ok((name, file)) => Some(format!("admin context {name:?} written to {file}\n")),
        Err::<_, CommandError>(failure) => {
            tracing::warn!("writing the admin context failed: {failure}");
            None
        }
    }
}

impl ManagerSetup {
    /// The message after the start: the result, the admin context, and how other machines join. `None` for a
    /// resumed manager.
    pub fn startup_message(&self, manager: &Manager, begun: &ManagerStartOutcome) -> Option<String> {
        let address = self.advertised(manager.address());
        let mut text = match begun {
            ManagerStartOutcome::Resumed => return None,
            ManagerStartOutcome::Initialized => {
                format!("cluster {} is available at {address}\n", manager.cluster())
            }
            ManagerStartOutcome::Joined(text) => text.clone(),
        };
        let others = bootstrap_addresses(&self.data_dir);
        let (roots, admin) = (manager.roots(), manager.admin());
        let context = write_admin_context(&address, &others, manager.cluster(), &roots, &admin);
        text += context.as_deref().unwrap_or_default();
        let hint = |role: &str| {
            format!("  warren {role} join {address} --token $(warren token create --role {role} --quiet)\n")
        };
        text += &format!("to add machines, run on them\n{}{}", hint("worker"), hint("manager"));
        Some(text)
    }
}

/// Without duplicates: a manager that lost its data has itself among the others.
fn own_first(own: ManagerAddress, others: &[ManagerAddress]) -> Vec<ManagerAddress> {
    let mut addresses = vec![own];
    for other in others {
        if !addresses.contains(other) {
            addresses.push(other.clone());
        }
    }
    addresses
}

/// Addresses of the managers named in the join response; empty for the first manager.
fn bootstrap_addresses(data_dir: &Path) -> Vec<ManagerAddress> {
    match member_identity::read_status(&data_dir.join("manager")) {
        Ok(LocalMemberStatus::Member(identity)) => {
            identity.bootstrap_peers.into_iter().map(|manager| manager.address).collect()
        }
        _ => Vec::new(),
    }
}

fn contexts_file() -> Result<PathBuf, CommandError> {
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || {
        CommandError::new(ExitKind::Failed, CONTEXT_FAILED, "the path of the contexts file is unknown", hint)
    };
    Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)
}

fn context_failure(error: &warren_client::Error) -> CommandError {
    let hint = "correct the file, or name another in WARREN_CONTEXTS";
    CommandError::new(ExitKind::Failed, CONTEXT_FAILED, error_chain(error), hint)
}

fn client_identity(ca: &str, admin: &Credentials) -> ClientIdentity {
    ClientIdentity {
        ca: ca.to_owned(),
        certificate: admin.certificate_pem().to_owned(),
        key: PrivateKeyPem(admin.key().pem().to_owned()),
    }
}

/// The cluster of the trusted authorities.
fn cluster_of(identity: &ClientIdentity) -> Option<String> {
    Roots::parse(&identity.ca).ok()?.cluster()
}

/// `default`, unless that belongs to another cluster.
fn context_name(known: &Contexts, own: &ClientIdentity, cluster: &str) -> String {
    let short = || cluster.chars().take(8).collect();
    match known.get("default").map(|context| &context.target) {
        Some(ClientTarget::Tcp { identity, .. }) if cluster_of(identity) != cluster_of(own) => short(),
        Some(ClientTarget::Unix { .. }) => short(),
        _ => "default".to_owned(),
    }
}

/// Runs as long as the manager: contexts of the administrator follow the certificate authority and the replacement of
/// a revoked key, and an address changed by users is stored for the next start. The CLI renews the certificates of
/// contexts.
pub fn keep_contexts_current(
    plan: &ManagerSetup,
    manager: &Manager,
) -> impl Future<Output = Infallible> + use<> {
    let (mut admin, trust) = (manager.admins(), manager.trust());
    let mut authorities = trust.changes();
    let (data_dir, store) = (plan.data_dir.clone(), manager.store().clone());
    let mut addresses = OwnAddressWatch::new(store.clone(), plan.advertised(manager.address()));
    async move {
        authorities.mark_changed();
        loop {
            tokio::select! {
                Ok(()) = authorities.changed() => {
                    let shown = admin.borrow().clone();
                    replace_outdated(trust.roots(), shown, store.clone()).await;
                }
                Ok(()) = admin.changed() => {
                    let shown = admin.borrow_and_update().clone();
                    replace_outdated(trust.roots(), shown, store.clone()).await;
                }
                address = addresses.next() => {
                    if let Err(failure) = remember_address(&data_dir, address) {
                        tracing::warn!("saving the manager's new address failed: {failure}");
                    }
                }
            }
        }
    }
}

/// Whether a context of this cluster's administrator has other authorities, or a revoked key. That of another manager
/// on this machine has another key, which is listed as well.
fn is_outdated(
    known: &ClientIdentity,
    ca: &str,
    admin: &Credentials,
    is_revoked: impl Fn(&PublicKeyHash) -> bool,
) -> bool {
    let key = warren_security::PrivateKey::parse(&known.key.0);
    let Ok(shown) = key.and_then(|key| Credentials::new(known.certificate.clone(), key)) else {
        return false;
    };
    let has_revoked_key = || shown.key().public_hash().is_ok_and(|key| is_revoked(&key));
    // The identity names the cluster.
    shown.identity() == admin.identity() && (known.ca != ca || has_revoked_key())
}

/// Replaces the authorities, the certificate and the key in outdated contexts.
async fn replace_outdated(roots: Arc<Roots>, admin: Credentials, store: Store) {
    let Ok(file) = contexts_file() else { return };
    let (path, published) = (file.clone(), store.read());
    let replace = move || {
        let ca = roots.pem();
        let is_old =
            |known: &ClientIdentity| is_outdated(known, ca, &admin, |key| published.state.is_revoked(key));
        Contexts::replace_identities(&path, is_old, &client_identity(ca, &admin))
    };
    // Another process may hold the lock of the file.
    match tokio::task::spawn_blocking(replace).await.expect("replacing an identity does not panic") {
        Ok(0) => {}
        Ok(_) => tracing::info!(file = %file.display(), "admin context updated"),
        Err(error) => tracing::warn!(error = error_chain(&error), "updating the admin context failed"),
    }
}

/// Watches this manager's address in the state.
struct OwnAddressWatch {
    store: Store,
    watch: ChangeWatch,
    known: Option<ManagerAddress>,
    /// The address that the manager advertises itself.
    advertised: String,
}

impl OwnAddressWatch {
    fn new(store: Store, own: String) -> Self {
        let published = store.read();
        let known = address_in(&published, store.own_id());
        Self { watch: store.watch(published.index), known, store, advertised: own }
    }

    async fn next(&mut self) -> ManagerAddress {
        let own = self.store.own_id();
        loop {
            let may_be = match self.watch.next().await {
                Ok(batches) => {
                    let mut changes = batches.iter().flat_map(|batch| batch.changes.iter());
                    changes.any(|change| *change == StateChange::Member(own))
                }
                // The missed changes may include this manager.
                Err(_) => true,
            };
            let now = may_be.then(|| address_in(&self.store.read(), own)).flatten();
            // The first address is the manager's own registration.
            if let Some(now) = now
                && self.known.replace(now.clone()).is_some_and(|known| known != now)
                && now.to_string() != self.advertised
            {
                return now;
            }
        }
    }
}

fn address_in(published: &PublishedState, own: MemberId) -> Option<ManagerAddress> {
    published.state.member(own).map(|member| member.address.clone())
}

fn remember_address(data_dir: &Path, address: ManagerAddress) -> Result<(), CommandError> {
    let Some(kept) = NodeFile::load(data_dir)? else { return Ok(()) };
    let flags = kept.section::<ManagerFlags>(MANAGER_SECTION)?.unwrap_or_default();
    let advertise = Some(AdvertiseAddress::from(address));
    if flags.advertise == advertise {
        return Ok(());
    }
    kept.with_section(MANAGER_SECTION, &ManagerFlags { advertise, ..flags }).save()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use warren_bootstrap::ca::ManagerKeys;
    use warren_bootstrap::member_identity::{BootstrapPeer, MemberIdentity};
    use warren_security::{Identity, Role};
    use warren_types::{Id, ManagerId};

    use super::*;

    #[test]
    fn joined_manager_lists_bootstrap_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let (file, data_dir) = (dir.path().join("contexts.toml"), dir.path().join("data"));
        let manager_dir = data_dir.join("manager");
        std::fs::create_dir_all(&manager_dir).unwrap();
        let keys = ManagerKeys::open(&manager_dir, true, SystemTime::now()).unwrap();
        let admin = keys.admin().borrow().clone();
        let write = |address: &str| {
            let identity = client_identity(keys.trust.roots().pem(), &admin);
            let addresses = own_first(address.parse().unwrap(), &bootstrap_addresses(&data_dir));
            let name = write_context(&file, addresses, keys.cluster, identity).unwrap();
            let known = Contexts::load(&file).unwrap();
            let ClientTarget::Tcp { addresses, .. } = &known.get(&name).unwrap().target else {
                panic!("{known:?}")
            };
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let reported = |member: u64| {
            let address = format!("10.0.0.{member}:8080").parse().unwrap();
            BootstrapPeer { member_id: member, id: ManagerId(Id(member.into())), address }
        };
        let joined = MemberIdentity {
            bootstrap_peers: [1, 2, 3].map(reported).to_vec(),
            ..MemberIdentity::sole_voter(4, keys.identity())
        };
        member_identity::save_identity(&manager_dir, &joined).unwrap();
        let all = ["10.0.0.3:8080", "10.0.0.1:8080", "10.0.0.2:8080"];
        for _ in 0..2 {
            assert_eq!(write("10.0.0.3:8080"), all, "it took the place of the third one");
        }
        // This manager starts a new incarnation: the others may still be in the last one.
        member_identity::save_identity(&manager_dir, &MemberIdentity::sole_voter(5, keys.identity()))
            .unwrap();
        assert_eq!(write("10.0.0.3:8080"), ["10.0.0.3:8080"]);
    }

    #[test]
    fn context_with_other_authorities_or_a_revoked_key_is_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ManagerKeys::open(dir.path(), true, SystemTime::now()).unwrap();
        let before = keys.admin().borrow().clone();
        keys.replace_admin(SystemTime::now()).unwrap();
        let (admin, roots) = (keys.admin().borrow().clone(), keys.trust.roots());
        let ca = roots.pem();
        let [revoked, own] = [&before, &admin].map(|shown| shown.key().public_hash().unwrap());
        assert_ne!(revoked, own);
        let check = |ca_of_context: &str, shown: &Credentials| {
            is_outdated(&client_identity(ca_of_context, shown), ca, &admin, |key| *key == revoked)
        };
        assert!(check(ca, &before));
        assert!(check("other", &admin));
        assert!(!check(ca, &admin));
        // Another manager on this machine has its own administrator.
        let authority = keys.authority.load();
        assert!(!check(ca, &authority.issue(admin.identity(), SystemTime::now()).unwrap()));
        // A context of a user is not that of the administrator.
        let ann = Identity::new(authority.cluster(), Role::User, "ann").unwrap();
        let ann = authority.issue_for(&ann, before.key().clone(), SystemTime::now()).unwrap();
        assert!(!check(ca, &ann) && !check("other", &ann));
    }

    #[test]
    fn changed_address_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        remember_address(dir.path(), "10.0.0.2:1".parse().unwrap()).unwrap();
        assert!(NodeFile::load(dir.path()).unwrap().is_none(), "nothing is made up");
        let before = ManagerFlags {
            advertise: Some("10.0.0.1".parse().unwrap()),
            listen: Some("127.0.0.1:1".parse().unwrap()),
            ..ManagerFlags::default()
        };
        NodeFile::new(dir.path()).with_section(MANAGER_SECTION, &before).save().unwrap();
        for _ in 0..2 {
            remember_address(dir.path(), "10.0.0.2:1".parse().unwrap()).unwrap();
            let kept = NodeFile::load(dir.path())
                .unwrap()
                .unwrap()
                .section::<ManagerFlags>(MANAGER_SECTION)
                .unwrap();
            let advertise = Some("10.0.0.2:1".parse().unwrap());
            assert_eq!(kept, Some(ManagerFlags { advertise, ..before.clone() }));
        }
    }
}
