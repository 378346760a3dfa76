//! What a certificate says about its holder, and how it is written into one and read back.
//!
//! The subject is `O = cluster, OU = role, CN = id`. A manager's certificate has the DNS name
//! [`MANAGER_NAME`] as its only alternative name; no other certificate has any.

use std::fmt;
use std::time::Duration;

use rcgen::{DistinguishedName, DnType, ExtendedKeyUsagePurpose};
use sha2::{Digest, Sha256};
use warren_types::{DEFAULT_NODE_CERTIFICATE_LIFETIME, Id, Node, NodeId, NodeRole, PublicKeyHash};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{
    OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME, OID_X509_ORGANIZATIONAL_UNIT, Oid,
};

/// The one name that clients verify. Only manager certificates carry it.
pub const MANAGER_NAME: &str = "warren-manager";

/// The bound X.520 sets on each part of the name (ub-common-name, ub-organization-name).
const MAX_PART: usize = 64;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the holder of a certificate is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A node that keeps the cluster's state: serves the port, and dials other managers.
    Manager,
    /// A node that runs tasks: dials managers.
    Worker,
    /// A person or a program that calls the managers. What it may do is in the state of the cluster.
    User,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Manager, Role::Worker, Role::User];

    /// The word in certificates, on the command line and in audit lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Manager => "manager",
            Role::Worker => "worker",
            Role::User => "user",
        }
    }

    /// How long a certificate for this role is valid by default.
    pub fn validity(self) -> Duration {
        match self {
            Role::Manager | Role::Worker => DEFAULT_NODE_CERTIFICATE_LIFETIME,
            Role::User => DAY,
        }
    }

    /// Whether its holder is a machine of the cluster, not a person.
    pub fn is_node(self) -> bool {
        matches!(self, Role::Manager | Role::Worker)
    }

    /// Only managers are ever on the serving side of a connection.
    pub(crate) fn key_usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        match self {
            Role::Manager => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Role::Worker | Role::User => vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }
}

impl From<NodeRole> for Role {
    fn from(role: NodeRole) -> Self {
        match role {
            NodeRole::Manager => Role::Manager,
            NodeRole::Worker => Role::Worker,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why something is not an identity of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A part would not be safe to show in a log line or is not what a name may be.
    #[error(
        "the {part} {found:?} is not allowed in a certificate: use 1 to {MAX_PART} of the ASCII letters, \
         digits and . _ - @ : +"
    )]
    InvalidPart {
        /// `cluster` or `id`.
        part: &'static str,
        /// The refused text.
        found: String,
    },
    /// The bytes are no X.509 certificate.
    #[error("not an X.509 certificate: {0}")]
    NotACertificate(String),
    /// The subject is not exactly one of each of O, OU and CN.
    #[error(
        "expected a subject of one O, one OU and one CN, found {found:?}: not issued by a Warren cluster"
    )]
    Subject {
        /// The subject as text.
        found: String,
    },
    /// The OU names no role.
    #[error("expected the role manager, worker or user as OU, found {found:?}")]
    Role {
        /// The OU.
        found: String,
    },
    /// The alternative names are not those of the role.
    #[error("a {role} certificate must have {}, found [{found}]", expected_names(*.role))]
    Names {
        /// The role in the subject.
        role: Role,
        /// The alternative names found.
        found: String,
    },
}

fn expected_names(role: Role) -> String {
    match role {
        Role::Manager => format!("the alternative name {MANAGER_NAME} only"),
        Role::Worker | Role::User => "no alternative name".to_owned(),
    }
}

/// The holder of a certificate. Its parts are plain text without spaces, safe to show anywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    cluster: String,
    role: Role,
    id: String,
}

impl Identity {
    /// An identity in the cluster with this id; `id` is a node id, or the name of a person.
    pub fn new(cluster: impl Into<String>, role: Role, id: impl Into<String>) -> Result<Self, IdentityError> {
        Ok(Self { cluster: parse_part("cluster", cluster.into())?, role, id: parse_part("id", id.into())? })
    }

    /// The id of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The node id, or the name of a person.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Reads the identity from a certificate. This does not verify the certificate: TLS did, or must.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        Self::try_from(&parse_der(der)?)
    }

    /// Reads the identity and the hash of the public key from a certificate. This does not verify the certificate.
    pub fn with_key_from_der(der: &[u8]) -> Result<(Self, PublicKeyHash), IdentityError> {
        let certificate = parse_der(der)?;
        let key = public_key_hash(certificate.public_key().raw);
        Ok((Self::try_from(&certificate)?, key))
    }

    /// Whether the id is that of the machine with this key, as it is for every manager and every node that joined. A
    /// copy of the CA's key signs certificates with any id, but these are not for the key of another.
    pub fn is_of_key(&self, key: &PublicKeyHash) -> bool {
        self.id.parse().is_ok_and(|id: NodeId| id == id_of(key))
    }

    /// Whether the node has this key: the one that is listed, or the one from which its id is derived.
    pub fn is_of_node(&self, node: &Node, key: &PublicKeyHash) -> bool {
        node.key.as_ref().map_or_else(|| self.is_of_key(key), |listed| listed == key)
    }

    pub(crate) fn subject(&self) -> DistinguishedName {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, self.cluster.as_str());
        subject.push(DnType::OrganizationalUnitName, self.role.as_str());
        subject.push(DnType::CommonName, self.id.as_str());
        subject
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.id)
    }
}

impl TryFrom<&X509Certificate<'_>> for Identity {
    type Error = IdentityError;

    fn try_from(certificate: &X509Certificate<'_>) -> Result<Self, IdentityError> {
        let [cluster, role, id] = subject_parts(certificate)?;
        let role = Role::parse(&role).ok_or(IdentityError::Role { found: role })?;
        check_names(certificate, role)?;
        Self::new(cluster, role, id)
    }
}

/// The hash of a public key in DER (SubjectPublicKeyInfo).
pub(crate) fn public_key_hash(info: &[u8]) -> PublicKeyHash {
    PublicKeyHash(Sha256::digest(info).into())
}

/// The id of the node or manager whose key has this hash.
pub(crate) fn id_of(key: &PublicKeyHash) -> NodeId {
    let first = key.0.first_chunk().expect("32 bytes have 16");
    NodeId(Id(u128::from_be_bytes(*first)))
}

pub(crate) fn parse_der(der: &[u8]) -> Result<X509Certificate<'_>, IdentityError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok((rest, _)) => Err(IdentityError::NotACertificate(format!("{} bytes follow it", rest.len()))),
        Err(error) => Err(IdentityError::NotACertificate(error.to_string())),
    }
}

pub(crate) fn parse_part(part: &'static str, found: String) -> Result<String, IdentityError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:+".contains(&byte);
    if (1..=MAX_PART).contains(&found.len()) && found.bytes().all(allowed) {
        return Ok(found);
    }
    Err(IdentityError::InvalidPart { part, found })
}

fn subject_parts(certificate: &X509Certificate<'_>) -> Result<[String; 3], IdentityError> {
    let subject = certificate.subject();
    let one_of = |oid: &Oid<'_>| {
        let mut values = subject.iter_by_oid(oid);
        let only = values.next()?.as_str().ok()?.to_owned();
        values.next().is_none().then_some(only)
    };
    let parts = (
        one_of(&OID_X509_ORGANIZATION_NAME),
        one_of(&OID_X509_ORGANIZATIONAL_UNIT),
        one_of(&OID_X509_COMMON_NAME),
    );
    match parts {
        (Some(cluster), Some(role), Some(id)) if subject.iter_attributes().count() == 3 => {
            Ok([cluster, role, id])
        }
        _ => Err(IdentityError::Subject { found: subject.to_string() }),
    }
}

fn check_names(certificate: &X509Certificate<'_>, role: Role) -> Result<(), IdentityError> {
    let extension = certificate
        .subject_alternative_name()
        .map_err(|error| IdentityError::NotACertificate(error.to_string()))?;
    let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let right = match role {
        Role::Manager => matches!(names, [GeneralName::DNSName(MANAGER_NAME)]),
        Role::Worker | Role::User => names.is_empty(),
    };
    if right {
        return Ok(());
    }
    let found = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(IdentityError::Names { role, found })
}

#[cfg(test)]
mod tests;
