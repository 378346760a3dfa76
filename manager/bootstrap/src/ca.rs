//! The keys of a manager: the cluster's CA and the certificates that it issued for this machine.
//!
//! Each is one file of mode 0600 in the manager's directory. While a manager is created, missing files are
//! created, so that an interrupted init is completed by the next one. Once the file `member` identifies the
//! manager, every file is checked against it before anything is written, and only certificates that can be
//! reissued are created again: they are written once the log and the snapshot are known to belong to that
//! manager too ([`IssuedCertificates`]).

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rand::RngExt;
use tokio::sync::watch;
use warren_core::{ManagerCaStep, State};
use warren_security::seal::KeyFiles;
use warren_security::{
    AuthorityError, CertificateAuthority, Credentials, CurrentAuthority, FileError, Identity, MaterialError,
    PrivateKey, ReloadableCertificate, Role, Roots, SecretObjectKey, TlsError, Trust, UnlockKey,
};
use warren_types::{
    ADMINISTRATOR, CaRotation, ClusterId, Id, ManagerId, MemberId, NodeId, NodeName, SecretObjectId,
};

use super::member_identity::{
    self, ADMIN_FILE, AUTHORITY_FILE, CertificateIdentity, MANAGER_FILE, MemberFileError, MemberIdentity,
    NODE_FILE, ROOTS_FILE, SECRET_OBJECT_KEY_FILE,
};

mod error;
mod key_rotation;
mod verify;

pub use self::error::CaError;
pub use self::verify::check_secret_object_key;
pub use self::verify::{ensure_secret_object_key, verify_certificates, verify_secret_object_key};

/// The identity of this machine's agent in hybrid mode.
#[derive(Debug, Clone)]
pub struct LocalAgent {
    /// The machine's node.
    pub id: NodeId,
    /// Its current certificate and key.
    pub credentials: Credentials,
    /// The same for its connections; updated by renewals.
    pub live_certificate: Arc<ReloadableCertificate>,
}

/// The certificates and keys of this machine. Certificates are renewed in the files and in open connections.
#[derive(Debug)]
pub struct ManagerKeys {
    /// The cluster's id, from the authority's certificate.
    pub cluster: ClusterId,
    /// Issues certificates.
    pub authority: Arc<CurrentAuthority>,
    /// The authorities that this manager trusts.
    pub trust: Arc<Trust>,
    /// This manager's id, from its certificate.
    pub id: ManagerId,
    /// The manager's certificate.
    pub manager: Arc<ReloadableCertificate>,
    /// The key that seals the secret objects; while it is replaced, the other one as well.
    pub secret_object_key: Arc<SecretObjectKey>,
    files: Arc<KeyFiles>,
    admin: watch::Sender<Credentials>,
    agent: watch::Sender<Option<LocalAgent>>,
    /// Held while files are changed.
    changing: Mutex<()>,
}

impl ManagerKeys {
    /// As [`ManagerKeys::prepare`] in `dir`, whose manager is not locked, and writes the issued certificates.
    ///
    /// # Errors
    /// [`CaError`]; nothing was changed if a file is missing or belongs to another manager.
    pub fn open(dir: &Path, create: bool, now: SystemTime) -> Result<Self, CaError> {
        let (keys, issued) = Self::prepare(KeyFiles::open(dir, None)?, create, now)?;
        issued.save(&keys.files)?;
        Ok(keys)
    }

    /// Opens the keys, and renews certificates past half of their lifetime. If the directory has a manager,
    /// all files must belong to it: this is verified first, and only certificates are reissued. Otherwise
    /// missing files are created; a new CA only with `create`. The agent's certificate exists once the node's
    /// id is known: [`ManagerKeys::ensure_agent`]. Writes nothing if the directory has a manager.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn prepare(
        files: Arc<KeyFiles>,
        create: bool,
        now: SystemTime,
    ) -> Result<(Self, IssuedCertificates), CaError> {
        let dir = files.dir();
        let member = member_identity::load_identity(dir)?;
        if let Some(member) = &member {
            verify::verify(&files, member)?;
        }
        let create = create && member.is_none();
        let authority = if dir.join(AUTHORITY_FILE).exists() {
            files.authority(AUTHORITY_FILE)?
        } else if create {
            let authority = CertificateAuthority::create(&new_id().to_string(), now)?;
            files.save_authority(AUTHORITY_FILE, &authority)?;
            authority
        } else {
            return Err(CaError::NoCluster(dir.to_owned()));
        };
        let mut issuer = CertificateIssuer::new(&files, &authority, now);
        let manager = issuer.ensure(MANAGER_FILE, Role::Manager, own_id)?;
        let admin = issuer.ensure(ADMIN_FILE, Role::User, |_| Ok(ADMINISTRATOR.to_owned()))?;
        let content_key = match files.secret_object_key(SECRET_OBJECT_KEY_FILE)? {
            Some(key) => key,
            None if create => verify::create_secret_object_key(&files)?,
            None => return Err(CaError::SecretObjectKeyMissing(dir.join(SECRET_OBJECT_KEY_FILE))),
        };
        let foreign = |file: &str, why: &dyn std::fmt::Display| CaError::ClusterMismatch {
            path: dir.join(file),
            why: why.to_string(),
        };
        let id = manager.identity().id().parse().map_err(|why| foreign(MANAGER_FILE, &why))?;
        let cluster = authority.cluster().parse().map_err(|why| foreign(AUTHORITY_FILE, &why))?;
        let node = member.and_then(|member| member.node);
        let agent = match (dir.join(NODE_FILE).exists(), node) {
            (false, None) => None,
            (_, node) => Some(issuer.agent(node)?),
        };
        let issued = issuer.issued;
        let trust = Trust::new(&authority.roots()).map_err(|why| foreign(AUTHORITY_FILE, &why))?;
        let keys = Self {
            cluster,
            authority: CurrentAuthority::new(authority),
            trust,
            id,
            manager: ReloadableCertificate::new(&manager),
            secret_object_key: Arc::new(content_key),
            files,
            admin: watch::Sender::new(admin),
            agent: watch::Sender::new(agent),
            changing: Mutex::default(),
        };
        Ok((keys, issued))
    }

    /// The identity of the manager with these keys.
    pub fn identity(&self) -> CertificateIdentity {
        CertificateIdentity {
            cluster: self.cluster,
            manager: self.id,
            secret_object_key: self.secret_object_key.key_fingerprint(),
        }
    }

    /// The files that have the keys.
    pub fn files(&self) -> &Arc<KeyFiles> {
        &self.files
    }

    /// Locks the keys on the disk with `unlock_key`, or no more, and completes an earlier change.
    ///
    /// # Errors
    /// [`CaError`]; a repeated call completes it.
    pub fn lock_with(&self, unlock_key: Option<&UnlockKey>) -> Result<(), CaError> {
        let _alone = self.changing();
        if member_identity::is_removed(self.files.dir())? {
            return Ok(());
        }
        if self.files.unlock_key() != unlock_key.map(UnlockKey::id) {
            self.files.set_unlock_key(unlock_key)?;
            match unlock_key {
                Some(key) => tracing::info!(unlock_key = %key.id(), "the keys of this manager are locked"),
                None => tracing::info!("the keys of this manager are not locked any more"),
            }
        }
        self.rewrite_files()
    }

    /// Writes the files whose form is not the wanted one.
    fn rewrite_files(&self) -> Result<(), CaError> {
        let certificates = [AUTHORITY_FILE, MANAGER_FILE, ADMIN_FILE, NODE_FILE];
        Ok(self.files.rewrite(&certificates, SECRET_OBJECT_KEY_FILE)?)
    }

    /// Records that the cluster removed this manager, and deletes the cluster's keys; durable when this returns. The
    /// certificate of the node stays, and its key is not locked any more: the node's tasks may still have to be
    /// stopped, by whoever starts the machine next.
    ///
    /// # Errors
    /// [`MemberFileError`]; the next start completes it.
    pub fn mark_removed(&self, identity: &MemberIdentity) -> Result<(), MemberFileError> {
        let _alone = self.changing();
        self.files.release(NODE_FILE)?;
        member_identity::mark_removed(self.files.dir(), identity)
    }

    /// The current certificate of this machine's administrator, with a notification at each renewal.
    pub fn admin(&self) -> watch::Receiver<Credentials> {
        self.admin.subscribe()
    }

    /// The current certificate of this machine's agent; `None` until the node's id is known.
    pub fn agent(&self) -> watch::Receiver<Option<LocalAgent>> {
        self.agent.subscribe()
    }

    /// The agent's certificate: the existing one, else one for the node `id`.
    ///
    /// # Errors
    /// [`CaError`], including that of `id`.
    pub fn ensure_agent(
        &self,
        id: impl FnOnce() -> Result<Option<NodeId>, CaError>,
        now: SystemTime,
    ) -> Result<LocalAgent, CaError> {
        let _alone = self.changing();
        let known = self.agent.borrow().clone();
        let agent = match known {
            Some(agent) => agent,
            None => {
                let id = id()?;
                let authority = self.authority.load();
                let mut issuer = CertificateIssuer::new(&self.files, &authority, now);
                let agent = issuer.agent(id)?;
                issuer.issued.save(&self.files)?;
                agent
            }
        };
        // Also for an existing agent: an earlier start may have been interrupted before this.
        member_identity::save_node(self.files.dir(), agent.id)?;
        self.agent.send_replace(Some(agent.clone()));
        Ok(agent)
    }

    /// Renews due certificates, those of machines for `lifetime`, and also if they are valid for longer than that; with
    /// `None`, they keep their lifetime.
    /// `chance` selects the time within the window of [`Credentials::renew_at`]; it is constant while the manager runs.
    ///
    /// # Errors
    /// [`CaError`]; certificates that were issued are in use, also if they cannot be stored.
    pub fn renew(&self, now: SystemTime, chance: u64, lifetime: Option<Duration>) -> Result<(), CaError> {
        let _alone = self.changing();
        self.reissue(&self.authority.load(), now, |found| {
            let role = found.identity().role();
            let wanted = match role.is_node() {
                true => lifetime.unwrap_or_else(|| found.lifetime()),
                false => role.validity(),
            };
            (found.is_renewal_due(now, chance) || found.lifetime() > wanted).then_some(wanted)
        })
    }

    /// Replaces the key of this machine's administrator, which was revoked.
    ///
    /// # Errors
    /// [`CaError`]; nothing was changed.
    pub fn replace_admin(&self, now: SystemTime) -> Result<(), CaError> {
        let _alone = self.changing();
        let (key, identity) =
            (PrivateKey::generate().map_err(AuthorityError::from)?, self.admin.borrow().identity().clone());
        let issued = self.authority.load().issue_for(&identity, key, now)?;
        self.files.save_credentials(ADMIN_FILE, &issued)?;
        tracing::info!("the administrator of this machine has another key: the earlier one is revoked");
        self.admin.send_replace(issued);
        Ok(())
    }

    /// Follows the replacement of the authority: takes this step of the manager, which may have been taken before.
    ///
    /// # Errors
    /// [`CaError`]; a repeated call completes the step.
    pub fn follow_rotation(
        &self,
        rotation: &CaRotation,
        step: ManagerCaStep,
        now: SystemTime,
    ) -> Result<(), CaError> {
        let _alone = self.changing();
        let invalid = |why: &dyn std::fmt::Display| self.mismatch(why);
        match step {
            ManagerCaStep::Adopt => {
                let opened = self.secret_object_key.open(rotation_id(self.cluster), &rotation.sealed);
                let opened = opened.map_err(|why| invalid(&why))?;
                let text = std::str::from_utf8(&opened).map_err(|why| invalid(&why))?;
                let authority = CertificateAuthority::parse_pem(text).map_err(|why| invalid(&why))?;
                if authority.digest() != rotation.digest || authority.cluster() != self.cluster.to_string() {
                    return Err(invalid(&"the new authority in the state is another one"));
                }
                // After a restart the state may be one from before a later replacement.
                if self.authority.load().has_replaced(&authority) {
                    return Ok(());
                }
                self.trust(&authority, rotation)?;
                // The file of the authority comes last: until then, the earlier one vouches for the certificates.
                self.reissue(&authority, now, |found| Some(found.lifetime()))?;
                self.files.save_authority(AUTHORITY_FILE, &authority)?;
                tracing::info!(ca = %authority.digest(), "using the new certificate authority");
                self.authority.replace(authority);
            }
            ManagerCaStep::DropPredecessor => {
                let authority = self.authority.load().without_predecessors();
                self.files.save_authority(AUTHORITY_FILE, &authority)?;
                self.trust(&authority, rotation)?;
                tracing::info!(ca = %authority.digest(), "trusting only the new certificate authority");
                self.authority.replace(authority);
            }
            ManagerCaStep::Record => {}
        }
        Ok(())
    }

    /// Trusts what this authority trusts, and the listed keys of nodes and users with certificates of earlier ones.
    ///
    /// # Errors
    /// [`CaError::ClusterMismatch`].
    pub fn accept_replaced(&self, rotation: &CaRotation) -> Result<(), CaError> {
        self.trust(&self.authority.load(), rotation)
    }

    fn trust(&self, authority: &CertificateAuthority, rotation: &CaRotation) -> Result<(), CaError> {
        let replaced = self.trust.replace(&authority.roots(), &rotation.predecessors);
        replaced.map_err(|why: TlsError| self.mismatch(&why))
    }

    fn mismatch(&self, why: &dyn std::fmt::Display) -> CaError {
        CaError::ClusterMismatch { path: self.files.dir().join(AUTHORITY_FILE), why: why.to_string() }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        // It guards files, each of which is replaced as a whole.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues the certificates that have a `next_lifetime`. They are in use before they are stored: a disk that is full
    /// does not keep this machine from its cluster.
    fn reissue(
        &self,
        authority: &CertificateAuthority,
        now: SystemTime,
        next_lifetime: impl Fn(&Credentials) -> Option<Duration>,
    ) -> Result<(), CaError> {
        let issuer = CertificateIssuer::new(&self.files, authority, now);
        let renewed = |file: &str| {
            let found = self.files.credentials(file)?;
            let Some(lifetime) = next_lifetime(&found) else { return Ok(None) };
            Ok::<_, CaError>(Some(issuer.renew(&found, lifetime)?))
        };
        let mut issued = Vec::new();
        if let Some(manager) = renewed(MANAGER_FILE)? {
            self.manager.replace(&manager);
            issued.push((MANAGER_FILE, manager));
        }
        if let Some(admin) = renewed(ADMIN_FILE)? {
            self.admin.send_replace(admin.clone());
            issued.push((ADMIN_FILE, admin));
        }
        let known = self.agent.borrow().clone();
        if let Some(LocalAgent { id, live_certificate: live, .. }) = known
            && let Some(credentials) = renewed(NODE_FILE)?
        {
            live.replace(&credentials);
            issued.push((NODE_FILE, credentials.clone()));
            self.agent.send_replace(Some(LocalAgent { id, credentials, live_certificate: live }));
        }
        let mut stored = Ok(());
        for (file, credentials) in issued {
            let saved = self.files.save_credentials(file, &credentials);
            if saved.is_ok() {
                tracing::info!(identity = %credentials.identity(), "certificate renewed");
            }
            stored = stored.and(saved);
        }
        Ok(stored?)
    }
}

/// The node id of a manager with a worker whose directory has none: the node with the manager's name if it
/// belonged to this machine, which lost its data; `None` if it is a new one.
///
/// It belonged to it if [`State::is_node_at`] says so, or if this manager is the only member, restored from a
/// backup.
///
/// # Errors
/// [`CaError::NodeMismatch`].
pub fn find_own_node(
    state: &State,
    own: MemberId,
    name: &NodeName,
    host: &str,
) -> Result<Option<NodeId>, CaError> {
    let Some(node) = state.node_of_manager(name) else { return Ok(None) };
    let replaces = state.member(own).and_then(|own| own.replaces);
    let alone = state.members().all(|member| member.member_id == own);
    if alone || state.is_node_at(node, host, replaces) {
        return Ok(Some(node.id));
    }
    let address = node.description.address.clone();
    Err(CaError::NodeMismatch { name: name.clone(), address })
}

/// The credentials and CAs of the agent of the manager in `dir`, if there is one; with the unlock key, if they are
/// locked. Changes nothing.
///
/// # Errors
/// [`CaError::File`], [`CaError::KeyFile`].
pub fn load_agent(
    dir: &Path,
    unlock_key: Option<&UnlockKey>,
) -> Result<Option<(Credentials, Roots)>, CaError> {
    let path = dir.join(NODE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let (authority, roots) = (dir.join(AUTHORITY_FILE), dir.join(ROOTS_FILE));
    let roots = match authority.exists() {
        true => CertificateAuthority::load_roots(&authority)?,
        // The CA's key was deleted with the manager.
        false => {
            let text = std::fs::read_to_string(&roots);
            let text = text.map_err(|source| FileError::Read { path: roots.clone(), source })?;
            Roots::parse(&text).map_err(|source| FileError::Material { path: roots, source })?
        }
    };
    let credentials = match Credentials::load(&path) {
        Err(FileError::Material { source: MaterialError::Sealed, .. }) => {
            KeyFiles::open(dir, unlock_key)?.credentials(NODE_FILE)?
        }
        found => found?,
    };
    Ok(Some((credentials, roots)))
}

/// What the new authority of a cluster is sealed for; no secret object has this id.
pub fn rotation_id(cluster: ClusterId) -> SecretObjectId {
    SecretObjectId(cluster.0)
}

/// The id of the machine that has the key; others check that.
fn own_id(key: &PrivateKey) -> Result<String, AuthorityError> {
    Ok(key.node_id()?.to_string())
}

fn new_id() -> Id {
    Id(rand::rng().random())
}

/// Issued certificates that are not on disk yet, by file.
#[derive(Debug, Default)]
#[must_use]
pub struct IssuedCertificates(Vec<(&'static str, Credentials)>);

impl IssuedCertificates {
    /// Writes them. Replacing a certificate is postponed if that fails, as on a full disk: the new one is for the same
    /// key, and in use.
    ///
    /// # Errors
    /// [`CaError::File`].
    pub fn save(self, files: &KeyFiles) -> Result<(), CaError> {
        for (file, issued) in self.0 {
            let Err(error) = files.save_credentials(file, &issued) else { continue };
            if files.credentials(file).is_err() {
                return Err(error.into());
            }
            // A running manager retries the renewal periodically.
            tracing::warn!(%error, file, "cannot store the renewed certificate; retrying later");
        }
        Ok(())
    }
}

struct CertificateIssuer<'a> {
    files: &'a KeyFiles,
    authority: &'a CertificateAuthority,
    now: SystemTime,
    issued: IssuedCertificates,
}

impl<'a> CertificateIssuer<'a> {
    fn new(files: &'a KeyFiles, authority: &'a CertificateAuthority, now: SystemTime) -> Self {
        Self { files, authority, now, issued: IssuedCertificates::default() }
    }

    /// The credentials in the file; new ones for the same holder and lifetime when they are past half of it, or are
    /// not valid yet because the issuing clock was ahead.
    fn ensure(
        &mut self,
        file: &'static str,
        role: Role,
        id: impl FnOnce(&PrivateKey) -> Result<String, AuthorityError>,
    ) -> Result<Credentials, CaError> {
        let path = self.files.dir().join(file);
        let cluster = self.authority.cluster();
        let (identity, key, lifetime) = if path.exists() {
            let found = self.files.credentials(file)?;
            if found.identity().cluster() != cluster || found.identity().role() != role {
                let why = format!("expected {role:?} of cluster {cluster}, found {}", found.identity());
                return Err(CaError::ClusterMismatch { path, why });
            }
            if !found.is_past_half(self.now) {
                return Ok(found);
            }
            (found.identity().clone(), found.key().clone(), found.lifetime())
        } else {
            let key = PrivateKey::generate().map_err(AuthorityError::from)?;
            (Identity::new(cluster, role, id(&key)?)?, key, role.validity())
        };
        let issued = self.authority.issue_lasting(&identity, key, self.now, lifetime)?;
        self.issued.0.push((file, issued.clone()));
        Ok(issued)
    }

    /// The agent of the node `id`, or of a new one, whose id is derived from its key.
    fn agent(&mut self, id: Option<NodeId>) -> Result<LocalAgent, CaError> {
        let id = |key: &PrivateKey| id.map_or_else(|| own_id(key), |id| Ok(id.to_string()));
        let credentials = self.ensure(NODE_FILE, Role::Worker, id)?;
        let id = credentials.identity().id().parse::<NodeId>().map_err(|why| CaError::ClusterMismatch {
            path: self.files.dir().join(NODE_FILE),
            why: why.to_string(),
        })?;
        let live = ReloadableCertificate::new(&credentials);
        Ok(LocalAgent { id, credentials, live_certificate: live })
    }

    /// Managers list the keys of users, so a renewed certificate has the same one.
    fn renew(&self, found: &Credentials, lifetime: Duration) -> Result<Credentials, CaError> {
        let (identity, key) = (found.identity(), found.key().clone());
        Ok(self.authority.issue_lasting(identity, key, self.now, lifetime)?)
    }
}

#[cfg(test)]
mod tests;
