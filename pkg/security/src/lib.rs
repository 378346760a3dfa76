//! Identities of a cluster: the certificate authority, the identities in certificates, and the mutual TLS 1.3 of the
//! cluster port. The unix socket is the second source of identities. Also encryption at rest of a manager ([`seal`]),
//! encryption of secrets ([`SecretObjectKey`]), and their delivery to the one node that needs them ([`delivery`]).
//!
//! This crate decides who the peer of a connection is ([`Peer`]), never what it may do. It must never put key bytes
//! into a log, an error or a `Debug` text, never accept TLS below 1.3, and never accept a certificate as that of a
//! manager without the name that only manager certificates have.
//!
//! Start reading at [`Identity`], then [`CertificateAuthority`], then [`serve_tls`]. How a machine joins a cluster:
//! [`JoinToken`], [`connect_to_join`], [`CertificateRequest`], [`MembershipStore`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod authority;
mod authority_error;
mod backup;
mod certificate_bundle;
mod cipher;
mod credentials;
mod current_authority;
pub mod delivery;
pub mod files;
mod hex;
mod identity;
mod join;
mod key;
mod key_file;
mod listener;
mod node_membership;
mod peer;
mod pem;
mod request;
mod revocations;
mod roots;
pub mod seal;
mod secret_object_key;
mod tls;
mod token;
mod trust;
mod unlock_key;

pub use authority::CertificateAuthority;
pub use authority_error::AuthorityError;
pub use backup::{
    BACKUP_FORMAT, BackupError, BackupWriter, MAX_PASSPHRASE, MIN_PASSPHRASE, Passphrase, PassphraseError,
    open_backup,
};
pub use credentials::Credentials;
pub use current_authority::CurrentAuthority;
pub use files::FileError;
pub use identity::{Identity, IdentityError, MANAGER_NAME, Role};
pub use join::{JoinConnectError, connect_to_join};
pub use key::PrivateKey;
pub use key_file::{KeyFileError, KeyFingerprint};
pub use listener::{
    HandshakeLimits, IncomingConnections, LocalListener, LocalSocketError, PeerConnection, listen_web,
    serve_local, serve_tls,
};
pub use node_membership::{IncompleteMembership, MembershipStore, NodeMembership, NodeMembershipError};
pub use peer::Peer;
pub use pem::MaterialError;
pub use request::{CertificateRequest, RequestError};
pub use revocations::Revocations;
pub use roots::Roots;
pub use secret_object_key::{SecretObjectKey, SecretObjectKeyError};
pub use tls::{
    ConnectError, ReloadableCertificate, ServerTls, WebCertificate, client_config, connect, connect_accepted,
    server_config, trusting_client_config, trusting_server_config, web_server_config, without_certificate,
};
pub use token::{JoinToken, TokenError};
pub use trust::{TlsError, Trust};
pub use unlock_key::{UnlockKey, UnlockKeyError};
pub use warren_types::{CaDigest, ParseDigestError};
