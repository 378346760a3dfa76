//! The keys of a manager: the cluster's authority and what it issued for this machine.
//!
//! Each is one file of mode 0600 in the manager's directory. While a manager is made, what is missing is made, so that
//! an init that was cut off is completed by the next one. Once the file `member` says which manager the directory is
//! of, every file is compared with it before anything is written, and only what can be issued again is made again: that
//! is written once the log and the snapshot are known to be of that manager too ([`IssuedCertificates`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rand::RngExt;
use tokio::sync::watch;
use warren_core::State;
use warren_security::{
    CertificateAuthority, ContentKey, Credentials, FileError, Identity, LiveCertificate, Role, Roots,
};
use warren_types::{ClusterId, Id, ManagerId, MemberId, NodeId, NodeName};

use crate::recovery::seat::{
    self, ADMIN_FILE, AUTHORITY_FILE, CONTENT_FILE, MANAGER_FILE, ManagerIdentity, NODE_FILE, ROOTS_FILE,
};

/// The administrator that `manager init` makes.
const ADMIN: &str = "admin";

mod error;
mod verify;

pub use self::error::CaError;
pub use self::verify::check_content_key;
pub(crate) use self::verify::{adopt_content_key, verify_certificates, verify_content_key};

/// What this machine's agent shows, in hybrid mode.
#[derive(Debug, Clone)]
pub struct LocalAgent {
    /// The machine's node.
    pub id: NodeId,
    /// What it shows by now.
    pub credentials: Credentials,
    /// The same for its connections, renewed while they are open.
    pub live: Arc<LiveCertificate>,
}

/// What this machine shows and trusts. What it shows is renewed in the files and wherever it is shown.
#[derive(Debug)]
pub struct Keys {
    /// The cluster's id, from the authority's certificate.
    pub cluster: ClusterId,
    /// Issues certificates.
    pub authority: Arc<CertificateAuthority>,
    /// This manager's id, from its certificate.
    pub id: ManagerId,
    /// What the manager shows.
    pub manager: Arc<LiveCertificate>,
    /// What contents are sealed with.
    pub content_key: Arc<ContentKey>,
    dir: PathBuf,
    admin: watch::Sender<Credentials>,
    agent: watch::Sender<Option<LocalAgent>>,
}

impl Keys {
    /// As [`Keys::prepare`], and writes what was issued.
    ///
    /// # Errors
    /// [`CaError`]; nothing was changed where a file is missing or of another manager.
    pub fn open(dir: &Path, create: bool, now: SystemTime) -> Result<Self, CaError> {
        let (keys, issued) = Self::prepare(dir, create, now)?;
        issued.save(dir, now)?;
        Ok(keys)
    }

    /// Opens the keys in `dir`, and renews those that are half-way through their life. Where `dir` is a manager's, they
    /// must all be that one's: that is verified first, and only what can be issued again is. Where it is none yet, the
    /// missing ones are made; a new cluster only when `create` says so. The agent's are there once it is known which
    /// node this is: [`Keys::ensure_agent`]. Writes nothing where `dir` is a manager's.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn prepare(dir: &Path, create: bool, now: SystemTime) -> Result<(Self, IssuedCertificates), CaError> {
        let seat = seat::written(dir)?;
        if let Some(seat) = &seat {
            verify::verify(dir, seat)?;
        }
        let (create, path) = (create && seat.is_none(), dir.join(AUTHORITY_FILE));
        let authority = if path.exists() {
            CertificateAuthority::load(&path)?
        } else if create {
            let authority = CertificateAuthority::create(&new_id().to_string(), now)?;
            authority.save(&path)?;
            authority
        } else {
            return Err(CaError::NoCluster(dir.to_owned()));
        };
        let mut issuer = Issuer::new(dir, &authority, now);
        let manager = issuer.ensure(MANAGER_FILE, Role::Manager, || new_id().to_string())?;
        let admin = issuer.ensure(ADMIN_FILE, Role::Admin, || ADMIN.to_string())?;
        let path = dir.join(CONTENT_FILE);
        let content_key = match ContentKey::load(&path)? {
            Some(key) => key,
            None if create => ContentKey::create(&path)?,
            None => return Err(CaError::ContentKeyMissing(path)),
        };
        let foreign = |file: &str, why: &dyn std::fmt::Display| CaError::Foreign {
            path: dir.join(file),
            why: why.to_string(),
        };
        let id = manager.identity().id().parse().map_err(|why| foreign(MANAGER_FILE, &why))?;
        let cluster = authority.cluster().parse().map_err(|why| foreign(AUTHORITY_FILE, &why))?;
        let node = seat.and_then(|seat| seat.node);
        let agent = match (dir.join(NODE_FILE).exists(), node) {
            (false, None) => None,
            (_, node) => Some(issuer.agent(|| node.unwrap_or_else(|| NodeId(new_id())).to_string())?),
        };
        let issued = issuer.issued;
        let keys = Self {
            cluster,
            authority: Arc::new(authority),
            id,
            manager: LiveCertificate::new(&manager),
            content_key: Arc::new(content_key),
            dir: dir.to_owned(),
            admin: watch::Sender::new(admin),
            agent: watch::Sender::new(agent),
        };
        Ok((keys, issued))
    }

    /// What tells the manager with these keys from every other one.
    pub fn identity(&self) -> ManagerIdentity {
        ManagerIdentity { cluster: self.cluster, manager: self.id, content_key: self.content_key.name() }
    }

    /// What this machine's administrator shows by now, and whenever that is renewed.
    pub fn admin(&self) -> watch::Receiver<Credentials> {
        self.admin.subscribe()
    }

    /// What this machine's agent shows; `None` until it is known which node this is.
    pub fn agent(&self) -> watch::Receiver<Option<LocalAgent>> {
        self.agent.subscribe()
    }

    /// The agent's certificate: the one there is, else one for the node `id`.
    ///
    /// # Errors
    /// [`CaError`], also that of `id`.
    pub fn ensure_agent(
        &self,
        id: impl FnOnce() -> Result<NodeId, CaError>,
        now: SystemTime,
    ) -> Result<LocalAgent, CaError> {
        let known = self.agent.borrow().clone();
        let agent = match known {
            Some(agent) => agent,
            None => {
                let id = id()?;
                let mut issuer = Issuer::new(&self.dir, &self.authority, now);
                let agent = issuer.agent(|| id.to_string())?;
                issuer.issued.save(&self.dir, now)?;
                agent
            }
        };
        // Also of one that was known: an earlier start may have been cut off before this.
        seat::note_node(&self.dir, agent.id)?;
        self.agent.send_replace(Some(agent.clone()));
        Ok(agent)
    }

    /// Renews what is due. `chance` places that within its window, as [`Credentials::renew_at`] says; it is the same
    /// for as long as the manager runs.
    ///
    /// # Errors
    /// [`CaError`]; what was renewed before it stays renewed.
    pub fn renew(&self, now: SystemTime, chance: u64) -> Result<(), CaError> {
        let issuer = Issuer::new(&self.dir, &self.authority, now);
        let renewed = |file: &str| {
            let found = Credentials::load(&self.dir.join(file))?;
            if !found.due_for_renewal(now, chance) {
                return Ok(None);
            }
            let renewed = issuer.issue(file, found.identity())?;
            tracing::info!(identity = %renewed.identity(), "certificate renewed");
            Ok::<_, CaError>(Some(renewed))
        };
        if let Some(manager) = renewed(MANAGER_FILE)? {
            self.manager.replace(&manager);
        }
        if let Some(admin) = renewed(ADMIN_FILE)? {
            self.admin.send_replace(admin);
        }
        let known = self.agent.borrow().clone();
        if let Some(LocalAgent { id, live, .. }) = known
            && let Some(credentials) = renewed(NODE_FILE)?
        {
            live.replace(&credentials);
            self.agent.send_replace(Some(LocalAgent { id, credentials, live }));
        }
        Ok(())
    }
}

/// Which node a manager with a worker is, where its directory does not say so: the manager's node of its name if it is
/// this machine that was that one and lost its data, else a new one.
///
/// It was that one where [`State::is_node_at`] says so, or if it goes on alone as the cluster of a backup.
///
/// # Errors
/// [`CaError::NodeOfAnother`].
pub fn node_of(state: &State, own: MemberId, name: &NodeName, host: &str) -> Result<NodeId, CaError> {
    let Some(node) = state.node_of_manager(name) else { return Ok(NodeId(new_id())) };
    let replaces = state.member(own).and_then(|own| own.replaces);
    let alone = state.members().all(|member| member.member == own);
    if alone || state.is_node_at(node, host, replaces) {
        return Ok(node.id);
    }
    let address = node.description.address.clone();
    Err(CaError::NodeOfAnother { name: name.clone(), address })
}

/// What the agent of the manager in `dir` shows, and whom it trusts, where there is one. Changes nothing.
///
/// # Errors
/// [`CaError::File`].
pub(crate) fn agent_in(dir: &Path) -> Result<Option<(Credentials, Roots)>, CaError> {
    let path = dir.join(NODE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let (authority, roots) = (dir.join(AUTHORITY_FILE), dir.join(ROOTS_FILE));
    let roots = match authority.exists() {
        true => CertificateAuthority::load(&authority)?.roots(),
        // The authority's key went with the manager.
        false => {
            let text = std::fs::read_to_string(&roots);
            let text = text.map_err(|source| FileError::Read { path: roots.clone(), source })?;
            Roots::parse(&text).map_err(|source| FileError::Content { path: roots, source })?
        }
    };
    Ok(Some((Credentials::load(&path)?, roots)))
}

fn new_id() -> Id {
    Id(rand::rng().random())
}

/// Certificates that were issued and are not on the disk yet, by their file.
#[derive(Debug, Default)]
#[must_use]
pub struct IssuedCertificates(Vec<(&'static str, Credentials)>);

impl IssuedCertificates {
    /// Writes them into `dir`. One that only replaces another that is still valid waits where the disk is full.
    ///
    /// # Errors
    /// [`CaError::File`].
    pub fn save(self, dir: &Path, now: SystemTime) -> Result<(), CaError> {
        for (file, issued) in self.0 {
            let path = dir.join(file);
            let Err(error) = issued.save(&path) else { continue };
            let is_valid = |found: Credentials| now < found.expires_at();
            if !error.is_out_of_space() || !Credentials::load(&path).is_ok_and(is_valid) {
                return Err(error.into());
            }
            // While it runs, a manager tries again and again to renew it.
            tracing::warn!(%error, path = %path.display(), "the certificate is renewed when there is room");
        }
        Ok(())
    }
}

struct Issuer<'a> {
    dir: &'a Path,
    authority: &'a CertificateAuthority,
    now: SystemTime,
    issued: IssuedCertificates,
}

impl<'a> Issuer<'a> {
    fn new(dir: &'a Path, authority: &'a CertificateAuthority, now: SystemTime) -> Self {
        Self { dir, authority, now, issued: IssuedCertificates::default() }
    }

    /// The credentials in the file; new ones for the same holder when they are half-way through, or were issued under a
    /// clock that was ahead.
    fn ensure(
        &mut self,
        file: &'static str,
        role: Role,
        id: impl FnOnce() -> String,
    ) -> Result<Credentials, CaError> {
        let path = self.dir.join(file);
        let cluster = self.authority.cluster();
        let identity = if path.exists() {
            let found = Credentials::load(&path)?;
            if found.identity().cluster() != cluster || found.identity().role() != role {
                let why = format!("it is of {}, wanted {role:?} of cluster {cluster}", found.identity());
                return Err(CaError::Foreign { path, why });
            }
            if self.now + role.validity() / 2 < found.expires_at() && !found.is_early(self.now) {
                return Ok(found);
            }
            found.identity().clone()
        } else {
            Identity::new(cluster, role, id())?
        };
        let issued = self.authority.issue(&identity, self.now)?;
        self.issued.0.push((file, issued.clone()));
        Ok(issued)
    }

    fn agent(&mut self, id: impl FnOnce() -> String) -> Result<LocalAgent, CaError> {
        let credentials = self.ensure(NODE_FILE, Role::Worker, id)?;
        let id = credentials
            .identity()
            .id()
            .parse::<NodeId>()
            .map_err(|why| CaError::Foreign { path: self.dir.join(NODE_FILE), why: why.to_string() })?;
        let live = LiveCertificate::new(&credentials);
        Ok(LocalAgent { id, credentials, live })
    }

    fn issue(&self, file: &str, identity: &Identity) -> Result<Credentials, CaError> {
        let issued = self.authority.issue(identity, self.now)?;
        issued.save(&self.dir.join(file))?;
        Ok(issued)
    }
}

#[cfg(test)]
mod tests;
