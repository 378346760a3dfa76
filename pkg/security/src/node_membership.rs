//! What makes a machine a member of a cluster, as it is stored on the machine's disk.
//!
//! | file        | content                                        | written                            |
//! |-------------|------------------------------------------------|------------------------------------|
//! | `node.key`  | the private key; the node's id follows from it | first, and once                    |
//! | `node.pem`  | the certificate                                | when it was let in, and renewed    |
//! | `roots.pem` | the authorities the node trusts                | last, and when they are replaced   |
//!
//! Each begins with a line `<mark> <format version> <first 16 digits of the SHA-256 of what follows>` and is PEM
//! from there on. Each is replaced as a whole ([`crate::files`]), so that killing the process at any moment
//! leaves a state that [`MembershipStore::load`] names, from which joining again gives the same node id.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use warren_types::NodeId;
use zeroize::Zeroizing;

use crate::files::{FileError, ensure_private_dir, read_private, write_private};
use crate::{Credentials, MaterialError, PrivateKey, Roots};

/// The format version of the files that this program writes, and the latest it reads.
const FORMAT: u32 = 1;
const KEY: MembershipFile = MembershipFile { name: "node.key", magic: "warren-node-key" };
const ROOTS: MembershipFile = MembershipFile { name: "roots.pem", magic: "warren-node-roots" };
const CERTIFICATE: MembershipFile = MembershipFile { name: "node.pem", magic: "warren-node-certificate" };

struct MembershipFile {
    name: &'static str,
    magic: &'static str,
}

/// Why a membership cannot be read or written. What stood on the disk still does.
#[derive(Debug, thiserror::Error)]
pub enum NodeMembershipError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory cannot be changed.
    #[error("cannot use the directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A later version wrote a file.
    #[error(
        "{} has format version {found}, and this version of Warren reads up to {FORMAT}: install the version \
         that wrote it", path.display()
    )]
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The node's key is gone or damaged, so that it cannot be the node it was.
    #[error(
        "{}: {why}; restore it from a backup, or remove the directory to join as a new node", path.display()
    )]
    Key {
        /// The file of the key.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No key can be made, or the system's randomness failed.
    #[error("the node's key cannot be used")]
    Material(#[from] MaterialError),
    /// The certificate is not this node's.
    #[error("not a certificate of this node, nothing was stored")]
    Rejected(#[source] IncompleteMembership),
}

/// What keeps a machine with a key from being a member.
#[derive(Debug, thiserror::Error)]
pub enum IncompleteMembership {
    /// Joining did not come to its end.
    #[error("{} is missing", .0.display())]
    Missing(PathBuf),
    /// A file does not hold what was written there.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The certificate is broken, of another key, or of another authority.
    #[error("unusable certificate")]
    Certificate(#[source] MaterialError),
    /// It names somebody else.
    #[error("the certificate names {found}, expected node {wanted}")]
    Identity {
        /// The role and id in it.
        found: String,
        /// The id that belongs to the key.
        wanted: NodeId,
    },
}

/// How far a machine is.
#[derive(Debug)]
pub enum NodeMembership {
    /// It never tried to join.
    NotMember,
    /// It has a key and not all of the rest: join (again) with this key, and it is the same node.
    Joining {
        /// The node's key.
        key: PrivateKey,
        /// What is missing or wrong.
        why: IncompleteMembership,
    },
    /// It is a member. Its key ([`Credentials::key`]) renews the certificate, also one that has expired
    /// ([`Credentials::expires_at`]).
    Member {
        /// What the node shows.
        credentials: Credentials,
        /// What it trusts.
        roots: Roots,
    },
}

/// The directory with the files.
#[derive(Clone, Debug)]
pub struct MembershipStore {
    dir: PathBuf,
}

impl MembershipStore {
    /// The files in `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// How far the machine is. Changes nothing.
    pub fn load(&self) -> Result<NodeMembership, NodeMembershipError> {
        let Some(key) = self.load_key()? else {
            return Ok(NodeMembership::NotMember);
        };
        match self.load_certificate(&key)? {
            Ok((credentials, roots)) => Ok(NodeMembership::Member { credentials, roots }),
            Err(why) => Ok(NodeMembership::Joining { key, why }),
        }
    }

    /// The node's key: made, and durable, before this returns for the first time, the same ever after.
    pub fn ensure_key(&self) -> Result<PrivateKey, NodeMembershipError> {
        ensure_private_dir(&self.dir)?;
        let directory = |source| NodeMembershipError::Directory { path: self.dir.clone(), source };
        let lock = File::open(&self.dir).map_err(directory)?;
        // Of two that join at once, the second finds the key of the first.
        lock.lock().map_err(directory)?;
        if let Some(key) = self.load_key()? {
            return Ok(key);
        }
        let key = PrivateKey::generate()?;
        self.write(&KEY, key.pem())?;
        Ok(key)
    }

    /// Checks that `certificate_pem` was issued by `roots` for this node's key under this node's id. Changes nothing.
    pub fn check(&self, roots: &Roots, certificate_pem: &str) -> Result<Credentials, NodeMembershipError> {
        let key = self.load_key()?.ok_or_else(|| self.key_error("it is missing"))?;
        check(roots, certificate_pem, &key).map_err(NodeMembershipError::Rejected)
    }

    /// Makes the machine a member: [checks](Self::check) both, and only then stores them. Harmless to repeat, and the
    /// way to renew a certificate.
    pub fn complete(&self, roots: &Roots, certificate_pem: &str) -> Result<Credentials, NodeMembershipError> {
        let credentials = self.check(roots, certificate_pem)?;
        // The certificate comes first: authorities that were replaced vouch for the one that issued it, so that it goes
        // with the roots from before. To renew it, nothing else is touched.
        self.write(&CERTIFICATE, certificate_pem)?;
        if !matches!(self.read(&ROOTS)?, Ok(stored) if stored.as_str() == roots.pem()) {
            self.write(&ROOTS, roots.pem())?;
        }
        Ok(credentials)
    }

    /// Removes the membership, which cannot be undone. The certificate is removed first and the key last, so an
    /// interrupted removal leaves no member and can be repeated.
    pub fn remove(&self) -> Result<(), NodeMembershipError> {
        for kind in [&CERTIFICATE, &ROOTS, &KEY] {
            let path = self.path(kind);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(FileError::Write { path, source }.into());
                }
                _ => {}
            }
        }
        match File::open(&self.dir).and_then(|dir| dir.sync_all()) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(NodeMembershipError::Directory { path: self.dir.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn load_key(&self) -> Result<Option<PrivateKey>, NodeMembershipError> {
        match self.read(&KEY)? {
            Ok(text) => PrivateKey::parse(&text).map(Some).map_err(|why| self.key_error(&why)),
            Err(IncompleteMembership::Missing(_)) if !self.path(&CERTIFICATE).exists() => Ok(None),
            Err(IncompleteMembership::Missing(_)) => {
                Err(self.key_error("it is missing, but its certificate is there"))
            }
            Err(IncompleteMembership::Damaged { what, .. }) => Err(self.key_error(&what)),
            Err(other) => Err(self.key_error(&other)),
        }
    }

    /// Without its last part the membership is not complete, which is no error.
    fn load_certificate(
        &self,
        key: &PrivateKey,
    ) -> Result<Result<(Credentials, Roots), IncompleteMembership>, NodeMembershipError> {
        let (roots, certificate) = match (self.read(&ROOTS)?, self.read(&CERTIFICATE)?) {
            (Ok(roots), Ok(certificate)) => (roots, certificate),
            (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
        };
        let roots = match Roots::parse(&roots) {
            Ok(roots) => roots,
            Err(why) => {
                return Ok(Err(IncompleteMembership::Damaged {
                    path: self.path(&ROOTS),
                    what: why.to_string(),
                }));
            }
        };
        Ok(check(&roots, &certificate, key).map(|credentials| (credentials, roots)))
    }

    fn key_error(&self, why: &(impl ToString + ?Sized)) -> NodeMembershipError {
        NodeMembershipError::Key { path: self.path(&KEY), why: why.to_string() }
    }

    fn path(&self, kind: &MembershipFile) -> PathBuf {
        self.dir.join(kind.name)
    }

    fn write(&self, kind: &MembershipFile, content: &str) -> Result<(), NodeMembershipError> {
        let head = format!("{} {FORMAT} {}\n", kind.magic, checksum(content));
        let mut text = Zeroizing::new(String::with_capacity(head.len() + content.len()));
        text.push_str(&head);
        text.push_str(content);
        Ok(write_private(&self.path(kind), text.as_bytes())?)
    }

    fn read(
        &self,
        kind: &MembershipFile,
    ) -> Result<Result<Zeroizing<String>, IncompleteMembership>, NodeMembershipError> {
        let path = self.path(kind);
        let text = match read_private(&path) {
            Ok(text) => text,
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(Err(IncompleteMembership::Missing(path)));
            }
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::InvalidData => {
                return Ok(Err(IncompleteMembership::Damaged { path, what: source.to_string() }));
            }
            Err(error) => return Err(error.into()),
        };
        remove_file(kind, &path, &text)
    }
}

/// Takes the content out of the file's text.
fn remove_file(
    kind: &MembershipFile,
    path: &Path,
    text: &str,
) -> Result<Result<Zeroizing<String>, IncompleteMembership>, NodeMembershipError> {
    let damaged =
        |what: &str| Ok(Err(IncompleteMembership::Damaged { path: path.to_owned(), what: what.to_owned() }));
    let Some((head, content)) = text.split_once('\n') else {
        return damaged("its first line is not whole");
    };
    let words: Vec<&str> = head.split(' ').collect();
    match words[..] {
        [mark, version, ..] if mark == kind.magic => match version.parse() {
            Ok(found) if found > FORMAT => {
                Err(NodeMembershipError::UnsupportedFormat { path: path.to_owned(), found })
            }
            Ok(FORMAT) if words[2..] == [checksum(content)] => Ok(Ok(Zeroizing::new(content.to_owned()))),
            _ => damaged("its content does not match its checksum"),
        },
        _ => damaged("it does not begin as such a file does"),
    }
}

fn checksum(content: &str) -> String {
    Sha256::digest(content)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check(
    roots: &Roots,
    certificate_pem: &str,
    key: &PrivateKey,
) -> Result<Credentials, IncompleteMembership> {
    let credentials =
        Credentials::new(certificate_pem, key.clone()).map_err(IncompleteMembership::Certificate)?;
    roots.check_issued(&credentials).map_err(IncompleteMembership::Certificate)?;
    let wanted = key.node_id().map_err(IncompleteMembership::Certificate)?;
    let identity = credentials.identity();
    if !identity.role().is_node() || identity.id() != wanted.to_string() {
        return Err(IncompleteMembership::Identity { found: identity.to_string(), wanted });
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests;
