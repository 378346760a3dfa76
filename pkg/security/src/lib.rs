//! Who is who in a cluster: its certificate authority, the identities in its certificates, and the mutual
//! TLS 1.3 of its one port. The unix socket is the second source of identities. And how a manager hides what
//! it writes to its disk ([`seal`]), how secrets are kept ([`ContentKey`]) and how they get to the one node that
//! needs them ([`delivery`]).
//!
//! This crate decides who the other side of a connection is ([`Peer`]), never what it may do. It must never
//! put key bytes into a log, an error or a `Debug` text, never accept TLS below 1.3, and never let a
//! certificate be taken for a manager's that does not carry the name only manager certificates have.
//!
//! Start reading at [`Identity`], then [`CertificateAuthority`], then [`serve_tls`]. How a machine becomes part
//! of a cluster: [`Token`], [`connect_to_join`], [`CertificateRequest`], [`MembershipStore`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod authority;
mod backup;
mod cipher;
mod content;
mod credentials;
pub mod delivery;
pub mod files;
mod hex;
mod identity;
mod join;
mod key;
mod key_file;
mod membership;
mod peer;
mod pem;
mod request;
mod roots;
pub mod seal;
mod serve;
mod tls;
mod token;

pub use authority::{AuthorityError, CertificateAuthority};
pub use backup::{
    BACKUP_FORMAT, BackupError, BackupWriter, LONGEST_PASSPHRASE, Passphrase, PassphraseError,
    SHORTEST_PASSPHRASE, open_backup,
};
pub use content::{ContentKey, ContentKeyError};
pub use credentials::Credentials;
pub use files::FileError;
pub use identity::{Identity, IdentityError, MANAGER_NAME, Role};
pub use join::{JoinError, connect_to_join};
pub use key::PrivateKey;
pub use key_file::{Fingerprint, KeyFileError};
pub use membership::{Membership, MembershipError, MembershipStore, Unfinished};
pub use peer::Peer;
pub use pem::MaterialError;
pub use request::{CertificateRequest, RequestError};
pub use roots::{CaDigest, ParseDigestError, Roots};
pub use serve::{
    Connection, Incoming, LocalListener, LocalSocketError, StrangerLimits, serve_local, serve_tls,
};
pub use tls::{ConnectError, LiveCertificate, TlsError, client_config, connect, server_config};
pub use token::{Token, TokenError};
